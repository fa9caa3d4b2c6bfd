//! The parse function: makes a line of the book what the kernel reads.
//!
//! ```text
//! `It's late!'   ►   │ 2 │ 4 │ 4 │ it'slate │     numbers of 32 bits, little-endian as GPUs have them
//! ```

use std::sync::Arc;

use tidegate_ffi::splice::Cause;
use tidegate_ffi::splice::block::{Parse, Sink};
use tidegate_ffi::splice::cursor::Extent;

use crate::book::words;
use crate::timeline::{Lane, Timeline};

/// Bytes in a working buffer that a word takes at least: its length and a letter.
pub const LEAST: usize = 5;

/// Parses lines, and notes when.
pub struct Words {
    timeline: Arc<Timeline>,
    begun: f64,
    lengths: Vec<u8>,
    letters: Vec<u8>,
}

impl Words {
    pub fn new(timeline: Arc<Timeline>) -> Self {
        Self { timeline, begun: 0.0, lengths: Vec::new(), letters: Vec::new() }
    }
}

impl Parse for Words {
    fn begin(&mut self, _lines: usize) {
        self.begun = self.timeline.now();
    }

    fn parse(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Cause> {
        if !line.is_ascii() {
            return Err("a line that is not ASCII".into());
        }
        self.lengths.clear();
        self.letters.clear();
        let mut count = 0u32;
        for word in words(line) {
            count += 1;
            self.lengths.extend((word.len() as u32).to_le_bytes());
            self.letters.extend_from_slice(word);
        }
        self.letters.make_ascii_lowercase();
        sink.put(&count.to_le_bytes());
        sink.put(&self.lengths);
        sink.put(&self.letters);
        Ok(())
    }

    fn end(&mut self, _block: Extent) {
        self.timeline.add(Lane::Parse, self.begun, self.timeline.now());
    }
}
