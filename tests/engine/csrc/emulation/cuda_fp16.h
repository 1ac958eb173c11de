#pragma once
using __half = _Float16;
inline float __half2float(__half x) { return float(x); }
inline __half __float2half_rn(float x) { return __half(x); }
