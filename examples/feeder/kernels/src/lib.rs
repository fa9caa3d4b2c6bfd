//! The kernel of `examples/feeder` as a host function: what `kernels.cu` is on a GPU, this library is on the
//! software GPU, which loads it with `cuModuleLoad` as any module.
//!
//! A kernel `name` is two exported symbols: a function `name(launch, args)`, where `args[i]` points at the i-th
//! parameter's value, and a table `name_params` with the parameters' sizes. One call is the whole launch.

mod hash;

use std::ffi::c_void;

/// How many parameters there are.
const COUNT: usize = 5;

/// The parameters: how many, and the size of each in bytes.
#[repr(C)]
pub struct Params {
    count: u32,
    sizes: [u32; COUNT],
}

#[unsafe(export_name = "hash_words_params")]
static PARAMS: Params = Params { count: COUNT as u32, sizes: [8, 8, 4, 4, 4] };

/// Puts the hash of every word of a working buffer into `results[1..]`, and their number into `results[0]`: see
/// `kernels.cu`.
///
/// # Safety
/// 1. `args` points at five pointers, each at the value of a parameter of `kernels.cu`, aligned or not.
/// 2. `working` has `bytes` bytes that nobody writes, `results` has `room + 1` aligned numbers that nobody else
///    uses, until the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hash_words(_launch: *const c_void, args: *const *const c_void) {
    // SAFETY: promise 1.
    let [working, results, data, bytes, room] = unsafe { args.cast::<[*const c_void; COUNT]>().read() };
    // SAFETY: promise 1: the first parameter is a pointer.
    let working = unsafe { working.cast::<*const u8>().read_unaligned() };
    // SAFETY: promise 1: the second is, too.
    let results = unsafe { results.cast::<*mut u64>().read_unaligned() };
    // SAFETY: promise 1: the others are numbers of 32 bits.
    let [data, bytes, room] =
        [data, bytes, room].map(|number| unsafe { number.cast::<u32>().read_unaligned() });
    // SAFETY: promise 2.
    let working = unsafe { std::slice::from_raw_parts(working, bytes as usize) };
    // SAFETY: promise 2.
    let results = unsafe { std::slice::from_raw_parts_mut(results, room as usize + 1) };
    let [count, hashes @ ..] = results else { return };
    for index in 0..data as usize {
        map(working, index, count, hashes);
    }
}

/// What a thread does on a GPU: the words of one datum. It stops where the buffer does.
fn map(working: &[u8], index: usize, count: &mut u64, hashes: &mut [u64]) -> Option<()> {
    let number = |at: usize| Some(u32::from_le_bytes(*working.get(at..)?.first_chunk()?) as usize);
    let start = number(8 * index)?;
    let words = number(start)?;
    let first = *count as usize;
    *count += words as u64;
    let mut letter = start + 4 * (1 + words);
    for word in 0..words {
        let end = letter + number(start + 4 * (1 + word))?;
        *hashes.get_mut(first + word)? = hash::hash(working.get(letter..end)?);
        letter = end;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA_SOURCE: &str = include_str!("../../kernels.cu");

    /// Two data, of the words "a", "bc" and "d", the second in front of the first.
    fn working() -> Vec<u8> {
        let numbers =
            |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let second = [numbers(&[1, 1]), b"d".to_vec(), vec![0xee; 7]].concat();
        let first = [numbers(&[2, 1, 2]), b"abc".to_vec()].concat();
        [numbers(&[32, 15, 16, 9]), second, first].concat()
    }

    fn launch(working: &[u8], room: u32) -> Vec<u64> {
        let mut results = vec![0; room as usize + 1];
        let (from, to) = (working.as_ptr(), results.as_mut_ptr());
        let (data, bytes) = (2u32, working.len() as u32);
        let args: [*const c_void; COUNT] = [
            (&raw const from).cast(),
            (&raw const to).cast(),
            (&raw const data).cast(),
            (&raw const bytes).cast(),
            (&raw const room).cast(),
        ];
        // SAFETY: five values of the parameters' types; the buffers are as long as they say, and live.
        unsafe { hash_words(std::ptr::null(), args.as_ptr()) };
        results
    }

    #[test]
    fn every_word_is_hashed_once() {
        let hashes = [b"a", &b"bc"[..], b"d"].map(hash::hash);
        assert_eq!(launch(&working(), 3), [&[3], &hashes[..]].concat());
        assert_eq!(hash::hash(b"a"), 0xaf63_dc4c_8601_ec8c, "as the FNV's authors give it");
    }

    #[test]
    fn what_finds_no_room_is_counted_and_not_written() {
        assert_eq!(launch(&working(), 1), [3, hash::hash(b"a")]);
        let cut = working().len() - 1;
        assert_eq!(launch(&working()[..cut], 3), [3, hash::hash(b"a"), 0, hash::hash(b"d")]);
    }

    #[test]
    fn the_parameters_are_those_of_the_cuda_source() {
        let (_, behind) = CUDA_SOURCE.split_once("void hash_words(").unwrap();
        let (params, _) = behind.split_once(')').unwrap();
        let declared: Vec<_> = params.split(',').map(str::trim).collect();
        let wanted = [
            "const unsigned char *working",
            "unsigned long long *results",
            "unsigned data",
            "unsigned bytes",
            "unsigned room",
        ];
        assert_eq!(declared, wanted);
        assert_eq!((PARAMS.count, PARAMS.sizes), (5, [8, 8, 4, 4, 4]));
    }
}
