//! On which NUMA node the pages of memory lie, and what keeps them there.
//!
//! ```text
//! map ─► bind ─► populate ─► page-lock (or pin) ─► nodes_of: are all where they should be?
//! ```
//! `bind` decides for pages that are not there yet. Page-locking may move pages without a word: hence the question.
//! None of these changes a byte of memory, wherever it is asked to look; so none is `unsafe`.

use super::faults::due;
use rustix::io::Errno;
use rustix::io_uring::{IoringRegisterOp, io_uring_params, io_uring_register, io_uring_setup, iovec};
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// More nodes than kernels are built for.
const NODES: usize = 1024;
const WORD: usize = c_ulong::BITS as usize;
/// So many pages are asked for at once.
const PAGES: usize = 4096;

/// Has the pages of a mapping come from one NUMA node alone; those of a memory file for all who map it.
pub fn bind(address: NonNull<c_void>, bytes: usize, node: u32) -> Result<(), Errno> {
    due("mbind")?;
    let mut mask: [c_ulong; NODES / WORD] = [0; NODES / WORD];
    *mask.get_mut(node as usize / WORD).ok_or(Errno::INVAL)? = 1 << (node as usize % WORD);
    // SAFETY: the call reads the mask, all of it (it takes one bit less than it is told), and changes no memory.
    let outcome = unsafe {
        libc::syscall(libc::SYS_mbind, address.as_ptr(), bytes, libc::MPOL_BIND, mask.as_ptr(), NODES + 1, 0)
    };
    result(outcome)
}

/// The node of each page of a mapping, pages being of `page_bytes` bytes; less than 0 where there is none: the error.
pub fn nodes_of(address: NonNull<c_void>, bytes: usize, page_bytes: usize) -> Result<Vec<c_int>, Errno> {
    due("move_pages")?;
    let first = address.as_ptr() as usize;
    let pages: Vec<usize> = (first..first + bytes).step_by(page_bytes).collect();
    let mut nodes = vec![0; pages.len()];
    for (pages, nodes) in pages.chunks(PAGES).zip(nodes.chunks_mut(PAGES)) {
        let nowhere: *const c_int = std::ptr::null();
        // SAFETY: without target nodes the call moves nothing; it reads so many addresses and writes so many numbers.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                nowhere,
                nodes.as_mut_ptr(),
                0,
            )
        };
        result(outcome)?;
    }
    if let (Err(error), Some(first)) = (due("page"), nodes.first_mut()) {
        *first = -error.raw_os_error();
    }
    Ok(nodes)
}

/// Pins the pages of a mapping until the result is closed, for long, as drivers of devices do.
pub fn pin(address: NonNull<c_void>, bytes: usize) -> Result<OwnedFd, Errno> {
    due("io_uring")?;
    let mut parameters = io_uring_params::default();
    // SAFETY: a ring that nobody maps: nothing is ever submitted to it.
    let ring = unsafe { io_uring_setup(1, &mut parameters) }?;
    let buffer = iovec { iov_base: address.as_ptr(), iov_len: bytes };
    // SAFETY: the call reads one buffer's place and size; without submissions no byte of it is read or written.
    unsafe {
        io_uring_register(
            ring.as_fd(),
            IoringRegisterOp::RegisterBuffers,
            std::ptr::from_ref(&buffer).cast(),
            1,
        )
    }?;
    Ok(ring)
}

fn result(outcome: c_long) -> Result<(), Errno> {
    match outcome {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{map_shared, memory_file, populate, set_size};
    use super::*;

    const PAGE: usize = 1 << 16;

    fn mapping() -> NonNull<c_void> {
        let file = memory_file("test").unwrap();
        set_size(&file, PAGE as u64).unwrap();
        map_shared(&file, PAGE).unwrap()
    }

    /// Node 0 is there in any kernel that knows nodes; where calls are forbidden, that is what is said.
    #[test]
    fn bound_pages_are_where_they_should_be() {
        let address = mapping();
        match bind(address, PAGE, 0) {
            Err(Errno::PERM | Errno::NOSYS) => return,
            outcome => outcome.unwrap(),
        }
        let page = rustix::param::page_size();
        assert!(nodes_of(address, PAGE, page).unwrap().iter().all(|node| *node < 0), "nothing is there yet");
        // SAFETY: the mapping is this test's.
        unsafe { populate(address, PAGE) }.unwrap();
        let _pinned = pin(address, PAGE);
        assert_eq!(nodes_of(address, PAGE, page).unwrap(), vec![0; PAGE / page]);
    }

    #[test]
    fn a_node_that_is_not_there_cannot_be_bound_to() {
        assert!(bind(mapping(), PAGE, 1000).is_err());
        assert_eq!(bind(mapping(), PAGE, NODES as u32), Err(Errno::INVAL));
    }
}
