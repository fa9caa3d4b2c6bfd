//! The hash of a word, as `kernels.cu` has it: FNV-1a of 64 bits.

/// The hash of these letters.
pub fn hash(word: &[u8]) -> u64 {
    word.iter().fold(0xcbf2_9ce4_8422_2325, |hash, letter| {
        (hash ^ u64::from(*letter)).wrapping_mul(0x0100_0000_01b3)
    })
}
