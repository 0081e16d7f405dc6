// A stand-in for the CUDA driver: it keeps what a launcher asks for, and tells it as text.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char told[1 << 16];
int params_bytes, multiprocessors;

static void tell(const char* what, unsigned long long x, unsigned long long y) {
  sprintf(told + strlen(told), "%s %llu %llu\n", what, x, y);
}

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = 3 + ordinal, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) { return *context = (CUcontext)(size_t)device, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) { return *address = (CUdeviceptr)malloc(bytes), CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) { return memcpy((void*)to, from, bytes), CUDA_SUCCESS; }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) { return memcpy(to, (void*)from, bytes), CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice* device) { return *device = 3, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && device == 3 ? multiprocessors : -1;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) { return *module = (CUmodule)image, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  *function = (CUfunction)name;
  return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  tell((const char*)function, attribute, value);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* shape,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const unsigned long long words[16] = {(unsigned long long)address, shape[0], shape[1], shape[2], shape[3], strides[0], strides[1], strides[2],
                                        box[0] | (unsigned long long)box[1] << 32, box[2] | (unsigned long long)box[3] << 32,
                                        steps[0] * steps[1] * steps[2] * steps[3], type, rank, interleave, swizzle, promotion * 8 + fill};
  memcpy(map, words, sizeof words);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  const unsigned char* bytes = params[0];
  tell((const char*)function, config->gridDimX, config->blockDimX);
  tell("shared, stream", config->sharedMemBytes, (unsigned long long)config->hStream);
  tell("early", config->numAttrs, config->numAttrs ? config->attrs[0].id : 0);
  for (int i = 0; i < params_bytes; ++i) sprintf(told + strlen(told), "%02x", bytes[i]);
  strcat(told, "\n");
  return extra || config->gridDimY != 1 || config->gridDimZ != 1 || config->blockDimY != 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
