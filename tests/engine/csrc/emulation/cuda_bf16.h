#pragma once
#include <bit>
#include <cstdint>
struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    return {uint16_t(x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
