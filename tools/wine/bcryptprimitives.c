/* The Go runtime asks bcryptprimitives.dll for ProcessPrng. Wine 8 has no such
 * export; this library gives it one. It is put beside a test program. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length); /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) {
  return length <= 0xffffffffu && SystemFunction036(data, (ULONG)length);
}
