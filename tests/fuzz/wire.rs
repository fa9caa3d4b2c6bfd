//! Bytes of a socket, of a live map, of a control page.

use arbitrary::Unstructured;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{FromMover, Reunion, ToManager, ToShim};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Header, Limits, live};

const LIMITS: Limits = Limits { fds: 16, patience: Duration::from_secs(60) };

/// Bytes → messages → bytes → the same messages.
pub fn codec(data: &[u8]) {
    codec_of::<ToManager>(data);
    codec_of::<Numbered<ToShim>>(data);
    codec_of::<Reunion>(data);
    codec_of::<FromMover>(data);
}

fn codec_of<M>(data: &[u8])
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    // The first byte says how much of the rest is framed as it should be.
    let (framed, raw) = data.split_at(data.len() * usize::from(data.first().copied().unwrap_or(0)) / 256);
    let mut said = Vec::new();
    for body in framed.chunks(usize::from(framed.get(1).copied().unwrap_or(0)) + 1) {
        said.extend(Header { length: body.len() as u32, fds: 0 }.encode());
        said.extend(body);
    }
    said.extend(raw);
    // At once: in small parts, less of it would have room in the socket.
    let (mut here, there) = UnixStream::pair().unwrap();
    here.write_all(&said).unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    let there = Connection::from(there);
    while let Ok((message, fds)) = there.receive_within::<M>(LIMITS) {
        let (a, b) = Connection::pair().unwrap();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        a.send(&message, &fds).unwrap();
        assert_eq!(b.receive::<M>().unwrap().0, message);
    }
}

/// A memory file with these bytes, and some of the seals that it should have.
fn memory(content: &[u8], seals: u8) -> OwnedFd {
    let mut file = File::from(memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all(content).unwrap();
    let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL, SealFlags::WRITE];
    let chosen = all.into_iter().enumerate().filter(|(bit, _)| seals & (1 << bit) != 0).map(|(_, seal)| seal);
    fcntl_add_seals(&file, chosen.collect()).unwrap();
    file.into()
}

/// A map is sorted, without overlaps and without ends beyond all addresses, or refused.
pub fn live_map(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let seals = if input.ratio(7, 8).unwrap_or(true) { 7 } else { input.arbitrary().unwrap_or(0) };
    let mut content = Vec::new();
    let mut at = 0u64;
    while let Ok(row) = input.arbitrary::<(u16, u16, u8, u8)>() {
        let (gap, bytes, odd, class) = row;
        let start = if odd == 0 { u64::MAX - u64::from(gap) } else { at + u64::from(gap) };
        at = start.wrapping_add(bytes.into());
        content.extend(start.to_le_bytes());
        content.extend(u64::from(bytes).to_le_bytes());
        content.extend(u32::from(class == 1).to_le_bytes());
        content.extend(u32::from(class).to_le_bytes());
        if odd == 1 {
            content.push(odd);
        }
        if at > u64::MAX / 2 {
            break;
        }
    }
    let Ok(ranges) = live::read(memory(&content, seals)) else { return };
    assert_eq!(seals & 7, 7, "a map that may still change its size was read");
    for range in &ranges {
        assert!(range.bytes > 0 && range.start.checked_add(range.bytes).is_some());
    }
    for pair in ranges.windows(2) {
        assert!((pair[0].class, pair[0].start + pair[0].bytes) <= (pair[1].class, pair[1].start));
    }
}

/// A page is mapped only at its size and with its seals; whatever is in it can be read.
pub fn page(data: &[u8]) {
    let (seals, rest) = data.split_first().unwrap_or((&0, &[]));
    let mut content = rest.to_vec();
    if seals & 0x80 != 0 {
        content.resize(size_of::<Page>(), *seals);
    }
    let Ok(page) = Page::open(memory(&content, *seals).as_fd()) else { return };
    assert!(seals & 7 == 7 && content.len() == size_of::<Page>());
    let rows = page.tenants.iter().map(|row| row.live_bytes[0].load(Ordering::Relaxed));
    let _ = rows.fold(page.boundaries.load(Ordering::Relaxed), u64::wrapping_add);
}
