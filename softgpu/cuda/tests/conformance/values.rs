//! Stream memory operations.

use cudarc::driver::sys::{self, CUresult};

use crate::support::*;

const GEQ: u32 = 0;
const EQ: u32 = 1;
const AND: u32 = 2;

promise! {
    fn a_stream_waits_until_a_word_is_reached() on PLAIN; {
        start();
        let (lane, word) = (stream(1), pinned(4).cast::<u32>());
        let shared = word as usize;
        // SAFETY: four bytes of pinned memory.
        unsafe { word.write_volatile(0) };
        ok!(cuStreamWaitValue32_v2(lane, shared as u64, 5, GEQ));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(cu!(cuStreamQuery(lane)), CUresult::CUDA_ERROR_NOT_READY);
        // SAFETY: as above.
        unsafe { (shared as *mut u32).write_volatile(7) };
        ok!(cuStreamSynchronize(lane));
    }
}

promise! {
    fn a_stream_writes_words_in_its_order() on PLAIN; {
        start();
        let (lane, at) = (stream(1), zeroes(16));
        let held = hold(lane);
        ok!(cuStreamWriteValue32_v2(lane, at, 11, 0));
        ok!(cuStreamWriteValue64_v2(lane, at + 8, u64::MAX - 1, 0));
        assert_eq!(cu!(cuStreamQuery(lane)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(at, 2), [11, 0]);
        assert_eq!(read::<u64>(at + 8, 1), [u64::MAX - 1]);
    }
}

promise! {
    fn streams_order_each_other_by_words() on PLAIN; {
        start();
        let (one, other, word, list) = (stream(1), stream(1), zeroes(8), zeroes(64));
        let append = kernel(c"append");
        ok!(cuStreamWaitValue64_v2(one, word, 1, EQ));
        assert_eq!(launch(append, one, &[arg(&list), arg(&2u32)]), CUresult::CUDA_SUCCESS);
        assert_eq!(launch(append, other, &[arg(&list), arg(&1u32)]), CUresult::CUDA_SUCCESS);
        ok!(cuStreamWriteValue64_v2(other, word, 1, 0));
        ok!(cuStreamSynchronize(one));
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn a_wait_may_look_for_bits() on PLAIN; {
        start();
        let (lane, word) = (stream(1), alloc(4));
        write(word, &[6u32]);
        ok!(cuStreamWaitValue32_v2(lane, word, 4, AND));
        ok!(cuStreamSynchronize(lane));
        // A number is reached as on a circle: 2^32 - 1 lies before 6.
        ok!(cuStreamWaitValue32_v2(lane, word, u32::MAX, GEQ));
        ok!(cuStreamSynchronize(lane));
    }
}

promise! {
    fn a_batch_does_one_after_the_other() on PLAIN; {
        use sys::CUstreamBatchMemOpType as Kind;
        start();
        let (lane, at) = (stream(1), zeroes(8));
        // SAFETY: plain C data; zero is a value of each field that is not set below.
        let mut batch: [sys::CUstreamBatchMemOpParams; 3] = unsafe { std::mem::zeroed() };
        batch[0].writeValue.operation = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32;
        batch[0].writeValue.address = at;
        batch[0].writeValue.__bindgen_anon_1.value = 1;
        batch[1].waitValue.operation = Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32;
        batch[1].waitValue.address = at;
        batch[1].waitValue.__bindgen_anon_1.value = 1;
        batch[1].waitValue.flags = EQ;
        batch[2].writeValue.operation = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32;
        batch[2].writeValue.address = at + 4;
        batch[2].writeValue.__bindgen_anon_1.value = 2;
        ok!(cuStreamBatchMemOp_v2(lane, 3, batch.as_mut_ptr(), 0));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(at, 2), [1, 2]);
    }
}

promise! {
    fn words_must_be_aligned() on PLAIN; {
        start();
        let (lane, at) = (stream(1), alloc(16));
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(cu!(cuStreamWriteValue32_v2(lane, at + 2, 1, 0)), invalid);
        assert_eq!(cu!(cuStreamWaitValue64_v2(lane, at + 4, 1, GEQ)), invalid);
    }
}
