/* xstate.so - preloaded into User Mode Linux on processors whose register state is larger than it knows.
 *
 * User Mode Linux 6.1 restores a guest process's vector registers with PTRACE_SETREGSET and a buffer of 2,696 bytes. A host kernel
 * takes only the processor's full size, which is larger since AMX, and answers EFAULT; the guest then ends while it boots. Here
 * the buffer is made as long as the host wants it. What is added is zero: state that its header calls initial, which no guest uses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/uio.h>

#define SETREGSET 0x4205
#define GETREGSET 0x4204
#define NT_X86_XSTATE 0x202
#define SIZE_MAX_KNOWN 65536

/* Not on the stack: the kernel stacks of User Mode Linux are small. One thread of it traces. */
static char state[SIZE_MAX_KNOWN] __attribute__((aligned(64)));
static size_t host_size;

typedef long trace(int, int, void *, void *);

long ptrace(int request, ...)
{
	static trace *real;
	va_list args;
	va_start(args, request);
	int pid = va_arg(args, int);
	void *addr = va_arg(args, void *), *data = va_arg(args, void *);
	va_end(args);
	if (!real)
		real = (trace *)dlsym(RTLD_NEXT, "ptrace");
	if (request != SETREGSET || (long)addr != NT_X86_XSTATE)
		return real(request, pid, addr, data);
	if (!host_size) {
		struct iovec all = { state, sizeof(state) };
		if (real(GETREGSET, pid, addr, &all) < 0)
			return -1;
		host_size = all.iov_len;
	}
	struct iovec *given = data;
	if (given->iov_len >= host_size)
		return real(request, pid, addr, data);
	memset(state, 0, host_size);
	memcpy(state, given->iov_base, given->iov_len);
	struct iovec whole = { state, host_size };
	return real(request, pid, addr, &whole);
}
