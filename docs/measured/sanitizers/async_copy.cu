// What memcheck says of an asynchronous copy of 16 bytes whose source is shorter: `cp.async.cg.shared.global [to], [from], 16, 4`.
//
//     nvcc -arch=sm_80 async_copy.cu -o async_copy
//     compute-sanitizer --tool memcheck ./async_copy 4      # an allocation of 4 bytes: one report
//     compute-sanitizer --tool memcheck ./async_copy 16     # of 16 bytes: none
//
// PTX says that only 4 bytes are read and the other 12 become zeros. The program checks the zeros, with other bytes behind the source. A source is
// aligned to 16 bytes, so that all 16 are in one page and in one sector of the cache: no such copy reaches memory that is not mapped.

#include <cstdio>
#include <cstdlib>
#include <cstring>

__global__ void copy(const unsigned *from, unsigned *to) {
    __shared__ __align__(16) unsigned words[4];
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(words));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 4;" ::"r"(place), "l"(from) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int i = 0; i < 4; i++) to[i] = words[i];
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? strtoul(argv[1], nullptr, 10) : 16;
    unsigned *from, *to, result[4], ones[4] = {1, 1, 1, 1};
    cudaMalloc(&from, bytes);
    cudaMalloc(&to, sizeof result);
    cudaMemcpy(from, ones, bytes < sizeof ones ? bytes : sizeof ones, cudaMemcpyHostToDevice);
    copy<<<1, 1>>>(from, to);
    cudaMemcpy(result, to, sizeof result, cudaMemcpyDeviceToHost);
    bool right = result[0] == 1 && result[1] == 0 && result[2] == 0 && result[3] == 0;
    printf("%zu bytes: %s, %s\n", bytes, right ? "right" : "wrong", cudaGetErrorString(cudaGetLastError()));
    return right ? 0 : 1;
}
