/* Stands in for NVIDIA's libraries, so that TensorFlow's GPU code runs on a machine without a GPU.

   TensorFlow opens libcuda, libcudart, libcublas, libcudnn and others by name when it starts. This
   one library takes the place of all of them. Its "GPUs" keep their memory in the host's:
   allocations, copies, streams and events work. Every kernel, product and convolution returns at
   once without writing its output. So what TensorFlow does around the kernels is real (placement,
   graph passes, copies, errors), and what the GPU would compute is not: memory is zero until
   something copies to it.

   Numbers of attributes and layouts of structures: cuda.h and driver_types.h of CUDA 12.5, and
   cudnn_graph.h of cuDNN 9.3, the versions that TensorFlow 2.21 is built with. TensorFlow reports a
   function that is missing here as an error when it calls it.

   Variables of the environment:
     STAND_IN_GPUS        how many GPUs there are; 1 by default (CUDA_VISIBLE_DEVICES limits them)
     STAND_IN_DRIVER      the CUDA version of the driver; 12050 by default
     STAND_IN_MB          the memory of each; 8192 by default
     STAND_IN_CAPABILITY  their compute capability times ten; 80 by default
     STAND_IN_CUDNN       the version of cuDNN; 90300 by default
     STAND_IN_FAIL        functions that fail, and their status: cuInit=100,cudnnCreate=1 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALIGNMENT 256
#define OUT_OF_MEMORY 2  /* CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation */

/* A function of the libraries: does `body`, and returns success or what STAND_IN_FAIL asks for. */
#define CALL(name, parameters, ...) \
  int name parameters { int status = failure(#name); if (!status) { __VA_ARGS__; } return status; }
#define SUCCEED(name) CALL(name, (void), )
#define CREATE(name) CALL(name, (void **handle), *handle = calloc(1, 512))
#define DESTROY(name) CALL(name, (void *handle), free(handle))

static long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value ? atol(value) : otherwise;
}

static int failure(const char *name) {
  const char *list = getenv("STAND_IN_FAIL"), *found = list;
  size_t length = strlen(name);
  while (found && (found = strstr(found, name))) {
    if ((found == list || found[-1] == ',') && found[length] == '=')
      return atoi(found + length + 1);
    found += length;
  }
  return 0;
}

static const char *describe_status(int status) {
  return status ? "an error of the stand-in" : "success";
}

static int gpus(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return setting("STAND_IN_GPUS", 1);
  int count = *visible && *visible != '-';
  for (; count && *visible; visible++) count += *visible == ',';
  return count;
}
static size_t memory(void) { return (size_t)setting("STAND_IN_MB", 8192) << 20; }
static int capability(void) { return setting("STAND_IN_CAPABILITY", 80); }

static atomic_size_t used;  /* Memory, in bytes. */

/* The driver: devices and contexts. A context is the address of its GPU's number. */

static int numbers[64];
static __thread int *current;

static int attribute(int which, int gpu) {
  switch (which) {
    case 1: case 2: case 3: return 1024;                 /* threads in a block, and in x and y */
    case 4: return 64;                                   /* in z */
    case 5: return 2147483647;                           /* blocks in a grid, x */
    case 6: case 7: return 65535;
    case 8: return 49152;                                /* shared memory of a block */
    case 9: case 12: return 65536;                       /* constant memory; registers */
    case 10: return 32;                                  /* threads in a warp */
    case 13: case 36: return 1410000;                    /* clocks, kHz */
    case 16: return 108;                                 /* multiprocessors */
    case 33: return 16 + gpu;                            /* PCI bus */
    case 37: return 5120;                                /* width of the memory bus, bits */
    case 38: return 40 << 20;                            /* L2 cache */
    case 39: return 2048;                                /* threads on a multiprocessor */
    case 75: return capability() / 10;
    case 76: return capability() % 10;
    case 81: case 97: return 164 << 10;                  /* shared memory of a multiprocessor */
    case 31: return 1;                                   /* concurrent kernels */
    case 41: return 1;                                   /* unified addresses */
    case 115: return 1;                                  /* memory pools */
    default: return 0;
  }
}

SUCCEED(cuInit)
CALL(cuDriverGetVersion, (int *version), *version = setting("STAND_IN_DRIVER", 12050))
CALL(cuDeviceGetCount, (int *count), *count = gpus())
CALL(cuDeviceGet, (int *gpu, int number), *gpu = number)
CALL(cuDeviceGetName, (char *name, int size, int gpu), snprintf(name, size, "Stand-in GPU"))
CALL(cuDeviceTotalMem_v2, (size_t *bytes, int gpu), *bytes = memory())
CALL(cuDeviceGetPCIBusId, (char *id, int size, int gpu),
     snprintf(id, size, "0000:%02x:00.0", 16 + gpu))
CALL(cuDeviceGetAttribute, (int *value, int which, int gpu), *value = attribute(which, gpu))
CALL(cuDevicePrimaryCtxGetState, (int gpu, unsigned *flags, int *active), *flags = *active = 0)
SUCCEED(cuDevicePrimaryCtxRelease_v2)
CALL(cuDevicePrimaryCtxRetain, (int **context, int gpu),
     numbers[gpu] = gpu; *context = numbers + gpu)
CALL(cuCtxGetCurrent, (int **context), *context = current)
CALL(cuCtxSetCurrent, (int *context), current = context)
CALL(cuCtxGetDevice, (int *gpu), *gpu = current ? *current : 0)
SUCCEED(cuCtxSynchronize)
CALL(cuDeviceCanAccessPeer, (int *can, int gpu, int peer), *can = 0)

static const struct { int status; const char *name, *text; } errors[] = {
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
  {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
   "system has unsupported display driver / cuda driver combination"},
  {999, "CUDA_ERROR_UNKNOWN", "unknown error"}};

static int find_error(int status) {
  int i = sizeof errors / sizeof *errors - 1;
  while (i && errors[i].status != status) i--;
  return i;
}
CALL(cuGetErrorName, (int error, const char **name), *name = errors[find_error(error)].name)
CALL(cuGetErrorString, (int error, const char **text), *text = errors[find_error(error)].text)

/* The driver: memory. */

static int allocate(void **pointer, size_t bytes) {
  bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (used + bytes > memory()) return OUT_OF_MEMORY;
  if (!(*pointer = aligned_alloc(ALIGNMENT, bytes + ALIGNMENT))) return OUT_OF_MEMORY;
  memset(*pointer, 0, bytes + ALIGNMENT);
  *(size_t *)*pointer = bytes;
  *pointer = (char *)*pointer + ALIGNMENT;
  used += bytes;
  return 0;
}

static void release(void *pointer) {
  if (!pointer) return;
  char *start = (char *)pointer - ALIGNMENT;
  used -= *(size_t *)start;
  free(start);
}

CALL(cuMemGetInfo_v2, (size_t *left, size_t *total), *total = memory(); *left = *total - used)
CALL(cuMemAlloc_v2, (void **pointer, size_t bytes), status = allocate(pointer, bytes))
CALL(cuMemFree_v2, (void *pointer), release(pointer))
CALL(cuDeviceGetDefaultMemPool, (void **pool, int gpu), *pool = numbers + gpu)
CALL(cuMemPoolGetAttribute, (void *pool, int which, uint64_t *value), *value = 0)
SUCCEED(cuMemPoolSetAttribute)
CALL(cuMemAllocFromPoolAsync, (void **pointer, size_t bytes, void *pool, void *stream),
     status = allocate(pointer, bytes))
CALL(cuMemFreeAsync, (void *pointer, void *stream), release(pointer))
CALL(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags),
     status = posix_memalign(pointer, ALIGNMENT, bytes) ? OUT_OF_MEMORY : 0)
CALL(cuMemFreeHost, (void *pointer), free(pointer))
CALL(cuPointerGetAttribute, (void *value, int which, void *pointer), memset(value, 0, 4))

#define COPY(name) \
  CALL(name, (void *to, const void *from, size_t bytes), memcpy(to, from, bytes))
COPY(cuMemcpyHtoD_v2) COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoH_v2) COPY(cuMemcpyDtoHAsync_v2)
COPY(cuMemcpyDtoD_v2) COPY(cuMemcpyDtoDAsync_v2)
CALL(cuMemcpyPeerAsync, (void *to, void *context, const void *from, void *other, size_t bytes),
     memcpy(to, from, bytes))
CALL(cuMemsetD32Async, (uint32_t *to, uint32_t value, size_t count), while (count--) *to++ = value)

/* The driver: streams, events and kernels. All work is done when a call returns. */

CALL(cuStreamCreate, (void **stream, unsigned flags), *stream = malloc(1))
DESTROY(cuStreamDestroy_v2)
CALL(cuStreamIsCapturing, (void *stream, int *capturing), *capturing = 0)
SUCCEED(cuStreamSynchronize)
SUCCEED(cuStreamWaitEvent)
CALL(cuEventCreate, (struct timespec **event, unsigned flags), *event = calloc(1, sizeof **event))
CALL(cuEventRecord, (struct timespec *event, void *stream), clock_gettime(CLOCK_MONOTONIC, event))
DESTROY(cuEventDestroy_v2)
CALL(cuEventElapsedTime, (float *ms, struct timespec *from, struct timespec *to),
     *ms = 1e3f * (to->tv_sec - from->tv_sec) + 1e-6f * (to->tv_nsec - from->tv_nsec))
SUCCEED(cuEventQuery)
SUCCEED(cuEventSynchronize)
CALL(cuModuleLoadData, (void **module), *module = malloc(1))
CALL(cuModuleUnload, (void *module), free(module))
CALL(cuModuleGetFunction, (const char **function, void *module, const char *name), *function = name)
CALL(cuFuncGetAttribute, (int *value, int which), *value = which ? 32 : 1024)
SUCCEED(cuFuncSetAttribute)
SUCCEED(cuFuncSetCacheConfig)
SUCCEED(cuLaunchKernel)

/* The runtime, for the kernels that are compiled into TensorFlow. */

static __thread struct { unsigned grid[4], block[4]; size_t shared; void *stream; } launch;

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
SUCCEED(__cudaRegisterFatBinaryEnd)
SUCCEED(__cudaUnregisterFatBinary)
SUCCEED(__cudaRegisterFunction)
SUCCEED(__cudaRegisterVar)
CALL(__cudaPushCallConfiguration,
     (uint64_t grid_xy, unsigned grid_z, uint64_t block_xy, unsigned block_z, size_t shared, void
      *stream),
     memcpy(launch.grid, &grid_xy, 8); launch.grid[2] = grid_z; memcpy(launch.block, &block_xy, 8);
     launch.block[2] = block_z; launch.shared = shared; launch.stream = stream)
CALL(__cudaPopCallConfiguration, (void *grid, void *block, size_t *shared, void **stream),
     memcpy(grid, launch.grid, 12); memcpy(block, launch.block, 12); *shared = launch.shared;
     *stream = launch.stream)
SUCCEED(cudaLaunchKernel)
SUCCEED(cudaGetLastError)
SUCCEED(cudaPeekAtLastError)
SUCCEED(cudaSetDevice)
CALL(cudaGetDevice, (int *gpu), *gpu = current ? *current : 0)
CALL(cudaGetDeviceCount, (int *count), *count = gpus())
CALL(cudaRuntimeGetVersion, (int *version), *version = 12050)
CALL(cudaDeviceGetAttribute, (int *value, int which, int gpu), *value = attribute(which, gpu))
CALL(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)
CALL(cudaFuncGetAttributes, (int *attributes),
     memset(attributes, 0, 64); attributes[6] = 1024; attributes[7] = 32)
CALL(cudaGetFuncBySymbol, (const void **function, const void *symbol), *function = symbol)
CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *blocks), *blocks = 2)
COPY(cudaMemcpyAsync)
const char *cudaGetErrorString(int error) { return describe_status(error); }
const char *cudaGetErrorName(int error) { return describe_status(error); }

static void describe(char *properties, int gpu) {  /* struct cudaDeviceProp */
  static const struct { int offset, attribute; } fields[] = {
    {304, 12}, {308, 10}, {320, 1}, {324, 2}, {328, 3}, {332, 4}, {336, 5}, {340, 6}, {344, 7},
    {348, 13}, {360, 75}, {364, 76}, {388, 16}, {616, 38}, {624, 39}};
  memset(properties, 0, 1032);
  strcpy(properties, "Stand-in GPU");
  *(size_t *)(properties + 288) = memory();
  *(size_t *)(properties + 296) = attribute(8, gpu);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    *(int *)(properties + fields[i].offset) = attribute(fields[i].attribute, gpu);
}
CALL(cudaGetDeviceProperties_v2, (char *properties, int gpu), describe(properties, gpu))

/* cuBLAS */

CREATE(cublasCreate_v2)
DESTROY(cublasDestroy_v2)
SUCCEED(cublasSetStream_v2)
SUCCEED(cublasSetMathMode)
SUCCEED(cublasSetPointerMode_v2)
CALL(cublasGetPointerMode_v2, (void *handle, int *mode), *mode = 0)
CALL(cublasGetMathMode, (void *handle, int *mode), *mode = 0)
CALL(cublasGetVersion_v2, (void *handle, int *version), *version = 120500)
SUCCEED(cublasSgemm_v2)
const char *cublasGetStatusString(int status) { return describe_status(status); }
SUCCEED(cublasSgemmEx)
SUCCEED(cublasSgemmStridedBatched)
SUCCEED(cublasGemmStridedBatchedEx)
CREATE(cublasLtCreate)

/* cuDNN */

size_t cudnnGetVersion(void) { return setting("STAND_IN_CUDNN", 90300); }
size_t cudnnGetCudartVersion(void) { return 12050; }
const char *cudnnGetErrorString(int status) { return describe_status(status); }
void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }
CALL(cudnnGetProperty, (int part, int *value),
     *value = cudnnGetVersion() / (int[]){10000, 100, 1}[part] % 100)
SUCCEED(cudnnGraphVersionCheck)
SUCCEED(cudnnOpsVersionCheck)
CREATE(cudnnCreate)
DESTROY(cudnnDestroy)
SUCCEED(cudnnSetStream)
CREATE(cudnnCreateTensorDescriptor)
DESTROY(cudnnDestroyTensorDescriptor)
SUCCEED(cudnnSetTensorNdDescriptor)
CREATE(cudnnCreatePoolingDescriptor)
DESTROY(cudnnDestroyPoolingDescriptor)
SUCCEED(cudnnSetPoolingNdDescriptor)
CREATE(cudnnCreateActivationDescriptor)
DESTROY(cudnnDestroyActivationDescriptor)
SUCCEED(cudnnSetActivationDescriptor)
CREATE(cudnnCreateLRNDescriptor)
DESTROY(cudnnDestroyLRNDescriptor)
SUCCEED(cudnnSetLRNDescriptor)
SUCCEED(cudnnLRNCrossChannelForward)
SUCCEED(cudnnLRNCrossChannelBackward)
SUCCEED(cudnnPoolingForward)
SUCCEED(cudnnPoolingBackward)
SUCCEED(cudnnBatchNormalizationForwardInference)
SUCCEED(cudnnBatchNormalizationForwardTrainingEx)
SUCCEED(cudnnBatchNormalizationBackwardEx)
CALL(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
     (void *handle, int mode, int operations, void *x, void *z, void *y, void *scale,
      void *activation, size_t *bytes),
     *bytes = 0)
CALL(cudnnGetBatchNormalizationBackwardExWorkspaceSize,
     (void *handle, int mode, int operations, void *x, void *y, void *dy, void *dz, void *dx,
      void *scale, void *activation, size_t *bytes),
     *bytes = 0)
CALL(cudnnGetBatchNormalizationTrainingExReserveSpaceSize,
     (void *handle, int mode, int operations, void *activation, void *x, size_t *bytes),
     *bytes = 0)

/* cuDNN's graphs: every graph has one engine, number 0, which needs no workspace. */

CALL(cudnnBackendCreateDescriptor, (int type, void **descriptor), *descriptor = calloc(1, 512))
DESTROY(cudnnBackendDestroyDescriptor)
SUCCEED(cudnnBackendSetAttribute)
SUCCEED(cudnnBackendFinalize)
SUCCEED(cudnnBackendExecute)

static int64_t elements(int attribute, int64_t room, int64_t *values) {
  switch (attribute) {
    case 202:   /* A heuristic's results, */
    case 300:   /* a configuration's engine, */
    case 401:   /* a plan's configuration: the caller's descriptors. */
      return 1;
    case 402:   /* The bytes of a plan's workspace. */
    case 1301:  /* An engine's number. */
      if (values && room) *values = 0;
      return 1;
    case 802:   /* How many engines a graph has. */
      if (values && room) *values = 1;
      return 1;
    default: return 0;
  }
}
CALL(cudnnBackendGetAttribute,
     (void *descriptor, int attribute, int type, int64_t room, int64_t *count, int64_t *values),
     int64_t found = elements(attribute, room, values); if (count) *count = found)

/* NCCL */

SUCCEED(ncclGetUniqueId)
CREATE(ncclCommInitRank)
DESTROY(ncclCommDestroy)
DESTROY(ncclCommAbort)
SUCCEED(ncclGroupStart)
SUCCEED(ncclGroupEnd)
const char *ncclGetErrorString(int error) { return describe_status(error); }
SUCCEED(ncclAllReduce)

/* NVML, which describes the links between GPUs */

SUCCEED(nvmlInit_v2)
SUCCEED(nvmlShutdown)
SUCCEED(nvmlDeviceGetHandleByPciBusId_v2)
SUCCEED(nvmlDeviceGetCurrPcieLinkGeneration)
SUCCEED(nvmlDeviceGetCurrPcieLinkWidth)
SUCCEED(nvmlDeviceGetNvLinkState)
SUCCEED(nvmlDeviceGetGpuFabricInfoV)
