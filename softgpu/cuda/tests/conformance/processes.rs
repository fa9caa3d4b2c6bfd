//! Several processes on one GPU: capacity, death, memory mapped in both.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;

use cudarc::driver::sys::CUresult;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::support::*;
use crate::vmm::{export, import, map, piece, range};

/// Another process and a socket to it, which is its standard input.
struct Partner {
    child: Child,
    socket: UnixStream,
}

impl Partner {
    fn start(part: &str) -> Partner {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let child = partner(part).stdin(OwnedFd::from(theirs)).spawn().unwrap();
        Partner { child, socket }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The socket to the process that started this one.
fn starter() -> BorrowedFd<'static> {
    // SAFETY: standard input stays open as long as the process.
    unsafe { BorrowedFd::borrow_raw(0) }
}

/// Tells the other side to go on, perhaps with a descriptor.
fn signal(socket: impl AsFd, fd: Option<BorrowedFd<'_>>) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut room);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        assert!(message.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(b"!")], &mut message, SendFlags::empty()).unwrap();
}

/// Waits for [`signal`], or for the other side's end (then there is no byte).
fn wait(socket: impl AsFd) -> (usize, Option<OwnedFd>) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut message,
        RecvFlags::CMSG_CLOEXEC,
    );
    let fd = message.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (got.unwrap().bytes, fd)
}

promise! {
    fn capacity_holds_over_processes_and_returns_on_death() on PLAIN; {
        start();
        if part() == "holder" {
            alloc(8 << 20);
            piece(4 << 20);
            signal(starter(), None);
            wait(starter());
            return;
        }
        let mut holder = Partner::start("holder");
        assert_eq!(wait(&holder.socket).0, 1);
        assert_eq!(free_memory(), 4 << 20);
        let mut at = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut at, 5 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        holder.kill();
        assert_eq!(free_memory(), MEMORY);
        alloc(MEMORY);
    }
}

promise! {
    fn a_mapped_piece_is_shared_and_outlives_its_maker() on PLAIN; {
        start();
        if part() == "maker" {
            let (at, handle) = (range(unit()), piece(unit()));
            map(at, unit(), handle);
            write(at, &[11u32]);
            // SAFETY: the driver made this descriptor for us.
            let fd = unsafe { OwnedFd::from_raw_fd(export(handle)) };
            signal(starter(), Some(fd.as_fd()));
            wait(starter());
            assert_eq!(read::<u32>(at, 1), [22]);
            signal(starter(), None);
            wait(starter());
            return;
        }
        let mut maker = Partner::start("maker");
        let fd = wait(&maker.socket).1.unwrap();
        let (at, handle) = (range(unit()), import(fd.as_raw_fd()));
        drop(fd);
        map(at, unit(), handle);
        ok!(cuMemRelease(handle));
        assert_eq!(read::<u32>(at, 1), [11]);
        write(at, &[22u32]);
        signal(&maker.socket, None);
        assert_eq!(wait(&maker.socket).0, 1);
        maker.kill();
        expect_free(MEMORY - unit());
        assert_eq!(read::<u32>(at, 1), [22]);
        ok!(cuMemUnmap(at, unit()));
        expect_free(MEMORY);
    }
}

promise! {
    fn a_descriptor_alone_keeps_its_piece() on PLAIN; {
        start();
        if part() == "maker" {
            // SAFETY: the driver made this descriptor for us.
            let fd = unsafe { OwnedFd::from_raw_fd(export(piece(unit()))) };
            signal(starter(), Some(fd.as_fd()));
            return;
        }
        let mut maker = Partner::start("maker");
        let fd = wait(&maker.socket).1.unwrap();
        maker.child.wait().unwrap();
        expect_free(MEMORY - unit());
        drop(fd);
        expect_free(MEMORY);
    }
}

promise! {
    fn many_processes_never_get_more_than_there_is() on PLAIN; {
        start();
        let taken = || {
            let mut handle = 0;
            let properties = crate::vmm::properties();
            (0..100).filter(|_| cu!(cuMemCreate(&mut handle, unit(), &properties, 0)) == CUresult::CUDA_SUCCESS).count()
        };
        if part() == "taker" {
            let count = taken() as u8;
            rustix::io::write(starter(), &[count]).unwrap();
            wait(starter());
            return;
        }
        let mut takers: Vec<_> = (0..4).map(|_| Partner::start("taker")).collect();
        let count = |taker: &Partner| {
            let mut byte = [0];
            rustix::io::read(&taker.socket, &mut byte).unwrap();
            usize::from(byte[0])
        };
        assert_eq!(takers.iter().map(count).sum::<usize>(), MEMORY / unit());
        assert_eq!(free_memory(), 0);
        takers.iter_mut().for_each(Partner::kill);
        assert_eq!(free_memory(), MEMORY);
    }
}
