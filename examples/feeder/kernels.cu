// The kernel of the example, compiled by NVRTC when the program starts. `kernels/` holds the same function for
// the software GPU, with the same parameters (a test compares them).

// FNV-1a.
#define BASIS 0xcbf29ce484222325ull
#define PRIME 0x100000001b3ull

// Puts the hash of every word in the working buffer into results[1..], in any order, and their number into
// results[0], which is 0 before. What lies past `bytes` or would go past `room` words is left out; the number
// counts it. A thread per datum. `working` begins with a place per datum, (start, bytes); a datum is the number of
// its words, the length of each, and their letters.
extern "C" __global__ void hash_words(
    const unsigned char *working, unsigned long long *results,
    unsigned data, unsigned bytes, unsigned room)
{
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= data)
        return;
    const unsigned start = ((const uint2 *)working)[index].x;
    const unsigned *datum = (const unsigned *)(working + start);
    const unsigned words = datum[0];
    const unsigned long long first = atomicAdd(results, (unsigned long long)words);
    unsigned letter = start + 4 * (1 + words);
    for (unsigned word = 0; word < words; ++word) {
        const unsigned end = letter + datum[1 + word];
        if (end > bytes || first + word >= room)
            return;
        unsigned long long hash = BASIS;
        for (; letter < end; ++letter)
            hash = (hash ^ working[letter]) * PRIME;
        results[1 + first + word] = hash;
    }
}
