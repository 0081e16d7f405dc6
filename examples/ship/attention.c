// A kernel of flashgen in a program without Python: it attends, and compares o with what it must be.
//
//     flashgen build examples/ship/attention.yaml --arch sm_90a --out build
//     cc -Ibuild/attention/sm_90a examples/ship/attention.c build/attention/sm_90a/kernel.c -lcuda -o attend
//     ./attend build/attention/sm_90a/kernel.cubin
//
// All keys are alike, so a query weighs those that it sees alike, and o of query i is the mean of v over keys 0 to i: with v of key j
// being 2 j in every column, i.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { BATCH = 1, LENGTH = 200, HEADS = 4, HEAD_DIM = 64, NUMBERS = BATCH * LENGTH * HEADS * HEAD_DIM };

static void must(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: CUDA error %d\n", what, (int)status);
  exit(2);
}

// bfloat16 is the upper half of a float; numbers here are small and whole, and lose nothing.
static unsigned short to_bfloat16(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return (unsigned short)(bits >> 16);
}

static float from_bfloat16(unsigned short x) {
  const unsigned bits = (unsigned)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}

static void* image_of(const char* path) {
  FILE* const file = fopen(path, "rb");
  void* image = NULL;
  long size = 0;
  if (file && !fseek(file, 0, SEEK_END) && (size = ftell(file)) > 0 && !fseek(file, 0, SEEK_SET)) image = malloc((size_t)size);
  if (!image || fread(image, 1, (size_t)size, file) != (size_t)size) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  fclose(file);
  return image;
}

static CUdeviceptr on_device(const void* from, size_t bytes) {
  CUdeviceptr address;
  must(cuMemAlloc(&address, bytes), "cuMemAlloc");
  must(cuMemcpyHtoD(address, from, bytes), "cuMemcpyHtoD");
  return address;
}

int main(int count, char** words) {
  static unsigned short x[NUMBERS], v[NUMBERS], o[NUMBERS];
  static const int zeros[3];
  CUdevice device;
  CUcontext context;
  struct attention_sm_90a_kernels kernels;
  struct attention_sm_90a_call call;
  float off = 0.0f;

  if (count != 2) return fprintf(stderr, "usage: %s kernel.cubin\n", words[0]), 2;
  for (int i = 0; i < NUMBERS; ++i) {
    x[i] = to_bfloat16(1.0f);
    v[i] = to_bfloat16(2.0f * (float)(i / (HEADS * HEAD_DIM) % LENGTH));
  }
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(attention_sm_90a_load(&kernels, image_of(words[1])), "load");

  const struct attention_sm_90a_strides strides = {LENGTH * HEADS * HEAD_DIM, HEAD_DIM, HEADS * HEAD_DIM, 1};
  memset(&call, 0, sizeof call);
  call.batch = BATCH, call.q_len = call.kv_len = LENGTH, call.heads = call.kv_heads = HEADS;
  call.q.data = call.k.data = on_device(x, sizeof x), call.v.data = on_device(v, sizeof v), call.o.data = on_device(o, sizeof o);
  call.q.strides = call.k.strides = call.v.strides = call.o.strides = strides;
  call.counter = on_device(zeros, sizeof zeros);
  call.softmax_scale = 1.0f / sqrtf(HEAD_DIM);
  must(attention_sm_90a_launch(&kernels, &call, NULL), "launch");
  must(cuCtxSynchronize(), "the kernel");
  must(cuMemcpyDtoH(o, call.o.data, sizeof o), "cuMemcpyDtoH");

  for (int i = 0; i < NUMBERS; ++i) off = fmaxf(off, fabsf(from_bfloat16(o[i]) - (float)(i / (HEADS * HEAD_DIM) % LENGTH)));
  printf("o of the last query is %.1f, of %d; the largest difference is %.2f\n", from_bfloat16(o[NUMBERS - 1]), LENGTH - 1, off);
  return off > 0.5f;
}
