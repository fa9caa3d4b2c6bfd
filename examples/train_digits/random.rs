//! Random numbers that depend on nothing but the seed: splitmix64 (Steele, Lea, Flood, 2014).

/// A stream of numbers; the n-th is a function of the seed and n.
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream numbered `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Random { state: seed };
        random.state = random.next() ^ stream;
        random
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly spread over `-limit .. limit`.
    pub fn symmetric(&mut self, limit: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1_u64 << 24) as f32;
        (2.0 * unit - 1.0) * limit
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            items.swap(last, other as usize);
        }
    }
}
