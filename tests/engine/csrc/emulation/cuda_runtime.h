// CUDA's execution model on one CPU thread, enough to run our kernels in tests on a machine without a GPU.
//
// The threads of a block are fibers that take turns; a fiber gives way at __syncthreads and at warp
// shuffles. Blocks run one after the other. What this cannot show: speed, memory ordering between warps
// that do not synchronise, the rounding of hardware approximations.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace emulation {

constexpr size_t kStack = 1 << 16;

struct Block {
    std::vector<ucontext_t> fibers;
    std::vector<bool> done;
    ucontext_t scheduler;
    unsigned current = 0, arrived = 0, generation = 0, size = 0;
    std::vector<double> slots;  // one a thread, for shuffles
    std::function<void()> body;
};

inline Block block;
inline dim3 thread_index, block_index, block_size, grid_size;

inline void give_way() {
    unsigned me = block.current;
    swapcontext(&block.fibers[me], &block.scheduler);
    thread_index = dim3(me, 0, 0);
}

inline void fiber() {
    block.body();
    block.done[block.current] = true;
    block.size--;  // a thread that has ended is not waited for
    swapcontext(&block.fibers[block.current], &block.scheduler);
}

inline void run_block(unsigned threads, const std::function<void()>& body) {
    static std::vector<char> stacks;
    stacks.resize(std::max(stacks.size(), threads * kStack));
    block.fibers.assign(threads, {});
    block.done.assign(threads, false);
    block.slots.assign(threads, 0.0);
    block.body = body;
    block.size = threads;
    block.arrived = block.generation = 0;
    for (unsigned t = 0; t < threads; t++) {
        getcontext(&block.fibers[t]);
        block.fibers[t].uc_stack.ss_sp = stacks.data() + t * kStack;
        block.fibers[t].uc_stack.ss_size = kStack;
        block.fibers[t].uc_link = nullptr;
        makecontext(&block.fibers[t], fiber, 0);
    }
    for (bool busy = true; busy;) {
        busy = false;
        for (unsigned t = 0; t < threads; t++) {
            if (block.done[t]) continue;
            busy = true;
            block.current = t;
            thread_index = dim3(t, 0, 0);
            swapcontext(&block.scheduler, &block.fibers[t]);
        }
    }
}

template <class Kernel, class... Arguments>
void launch(Kernel kernel, dim3 grid, dim3 threads, Arguments... arguments) {
    grid_size = grid;
    block_size = threads;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            block_index = dim3(x, y, 0);
            run_block(threads.x, [=] { kernel(arguments...); });
        }
}

}  // namespace emulation

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size
#define MS_RUN(kernel, grid, block, stream, ...) emulation::launch(kernel, grid, block, __VA_ARGS__)

inline void __syncthreads() {
    using emulation::block;
    unsigned generation = block.generation;
    if (++block.arrived >= block.size) {
        block.arrived = 0;
        block.generation++;
        emulation::give_way();  // so that all lanes of this warp go on in the same round
        return;
    }
    while (block.generation == generation) emulation::give_way();
}

// Lanes of a warp run in the same rounds, so everybody has written after one turn and read after two.
template <class W> W __shfl_xor_sync(unsigned, W value, int offset) {
    using emulation::block;
    block.slots[block.current] = double(value);
    emulation::give_way();
    W other = W(block.slots[block.current ^ unsigned(offset)]);
    emulation::give_way();
    return other;
}

inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
using std::sqrt;
