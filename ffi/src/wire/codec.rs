//! Frames: a fixed header, then one postcard message.
//!
//! ```text
//! 0        4       6         8
//! ┌────────┬───────┬─────────┬───────────────────────────┐
//! │ length │  fds  │ version │ postcard, `length` bytes  │   little endian
//! └────────┴───────┴─────────┴───────────────────────────┘
//! ```
//! The version stands in every frame, so that two versions can name each other before they
//! try to read each other's messages. Lengths and counts are bounded on receipt (I10).

use serde::{Serialize, de::DeserializeOwned};

/// The protocol's version. Any change of a message changes it.
pub const VERSION: u16 = 22;
/// The longest message, in bytes, without its header.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The most file descriptors that one message may carry (the kernel's SCM_MAX_FD).
pub const MAX_FDS: usize = 253;

/// A frame's first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message that follows.
    pub length: u32,
    /// File descriptors that travel with it.
    pub fds: u16,
}

/// What is wrong with a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The other side speaks another version.
    #[error(
        "the other side speaks protocol version {theirs}, this side {ours}: use the same release of Tidegate on both"
    )]
    Version {
        /// Their version.
        theirs: u16,
        /// Our version.
        ours: u16,
    },
    /// The message is longer than allowed.
    #[error("a message of {0} bytes is longer than the {MAX_MESSAGE_BYTES} allowed")]
    TooLong(usize),
    /// More file descriptors than allowed.
    #[error("{0} file descriptors in one message are more than the {MAX_FDS} allowed")]
    TooManyFds(usize),
    /// Not a message of this direction.
    #[error("a message cannot be read: {0}")]
    Malformed(String),
}

impl Header {
    /// The header's size in bytes.
    pub const BYTES: usize = 8;

    /// The header as it travels.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.fds.to_le_bytes());
        bytes[6..].copy_from_slice(&VERSION.to_le_bytes());
        bytes
    }

    /// Reads and bounds a header.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, CodecError> {
        let [l0, l1, l2, l3, f0, f1, v0, v1] = bytes;
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != VERSION {
            return Err(CodecError::Version { theirs, ours: VERSION });
        }
        let header = Self { length: u32::from_le_bytes([l0, l1, l2, l3]), fds: u16::from_le_bytes([f0, f1]) };
        check_bounds(header.length as usize, header.fds as usize)?;
        Ok(header)
    }
}

fn check_bounds(bytes: usize, fds: usize) -> Result<(), CodecError> {
    if bytes > MAX_MESSAGE_BYTES {
        return Err(CodecError::TooLong(bytes));
    }
    if fds > MAX_FDS {
        return Err(CodecError::TooManyFds(fds));
    }
    Ok(())
}

/// A whole frame for `message`, to be sent with `fds` file descriptors.
pub(super) fn encode(message: &impl Serialize, fds: usize) -> Result<Vec<u8>, CodecError> {
    let mut frame = postcard::to_extend(message, vec![0; Header::BYTES]).map_err(malformed)?;
    let length = frame.len() - Header::BYTES;
    check_bounds(length, fds)?;
    let header = Header { length: length as u32, fds: fds as u16 };
    frame[..Header::BYTES].copy_from_slice(&header.encode());
    Ok(frame)
}

/// The message in a frame's body; bytes left over are an error.
pub(super) fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, CodecError> {
    match postcard::take_from_bytes(body).map_err(malformed)? {
        (message, []) => Ok(message),
        (_, rest) => Err(CodecError::Malformed(format!("{} bytes too many", rest.len()))),
    }
}

fn malformed(error: postcard::Error) -> CodecError {
    CodecError::Malformed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::message::{FromShim, ToShim};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let mut bytes = Header { length: 1, fds: 0 }.encode();
        bytes[6] = 99;
        let error = Header::decode(bytes).unwrap_err();
        assert_eq!(error, CodecError::Version { theirs: 99, ours: VERSION });
        assert!(error.to_string().contains("99") && error.to_string().contains(&VERSION.to_string()));
    }

    #[test]
    fn lengths_and_counts_are_bounded_on_receipt() {
        let long = Header { length: MAX_MESSAGE_BYTES as u32 + 1, fds: 0 }.encode();
        assert!(matches!(Header::decode(long), Err(CodecError::TooLong(_))));
        let crowded = Header { length: 0, fds: MAX_FDS as u16 + 1 }.encode();
        assert!(matches!(Header::decode(crowded), Err(CodecError::TooManyFds(_))));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused_but_never_panic(body in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<FromShim>(&body);
            let _ = decode::<ToShim>(&body);
        }
    }
}
