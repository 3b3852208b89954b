// Sets the address at which TensorFlow's servers listen. tf.distribute.Server always asks gRPC for
// "0.0.0.0:port", whatever address the cluster gives it, and has no option for another one. This
// file replaces bind(2) for TensorFlow's libraries: it overwrites their entries for it in the
// global offset table. The caller checks the result (embedps/cluster/bind_address.py).
#include <arpa/inet.h>
#include <elf.h>
#include <link.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "embedps/kernels/runtime/mutex.h"

namespace {

#if defined(__x86_64__)
constexpr uint32_t kFunctionRelocations[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr uint32_t kFunctionRelocations[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#endif

struct BindAddress {
  int family = AF_UNSPEC;  // AF_UNSPEC: keep the address that the caller asks for
  in_addr v4 = {};
  in6_addr v6 = {};
};

embedps::Mutex mutex;
BindAddress bind_address GUARDED_BY(mutex);

bool IsWildcard(const sockaddr* address, socklen_t length) {
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
  }
  if (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  uint32_t last;
  std::memcpy(&last, v6.s6_addr + 12, sizeof(last));
  return IN6_IS_ADDR_UNSPECIFIED(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && last == INADDR_ANY);
}

// bind(2), but for a stream socket it replaces a wildcard address by `bind_address`.
int BindToAddress(int fd, const sockaddr* address, socklen_t length) {
  BindAddress to;
  {
    const embedps::MutexLock lock(&mutex);
    to = bind_address;
  }
  int type = 0;
  socklen_t size = sizeof(type);
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
  if (to.family == AF_UNSPEC || type != SOCK_STREAM || !IsWildcard(address, length)) {
    return ::bind(fd, address, length);
  }
  if (address->sa_family == AF_INET) {
    sockaddr_in changed;
    std::memcpy(&changed, address, sizeof(changed));
    if (to.family == AF_INET) changed.sin_addr = to.v4;  // else the caller's check fails
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&changed), sizeof(changed));
  }
  sockaddr_in6 changed;
  std::memcpy(&changed, address, sizeof(changed));
  if (to.family == AF_INET6) {
    changed.sin6_addr = to.v6;
  } else {  // an IPv4 address on a socket of both families: ::ffff:a.b.c.d
    std::memset(&changed.sin6_addr, 0, 10);
    std::memset(changed.sin6_addr.s6_addr + 10, 0xff, 2);
    std::memcpy(changed.sin6_addr.s6_addr + 12, &to.v4, 4);
  }
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&changed), sizeof(changed));
}

// One relocation table of a library.
struct RelocationTable {
  const ElfW(Rela) * first = nullptr;
  size_t bytes = 0;
};

// Returns how many function calls it redirected.
int RedirectBind(const RelocationTable& relocations, ElfW(Addr) base, const ElfW(Sym) * symbols,
                 const char* names) {
  int redirected = 0;
#if defined(__x86_64__) || defined(__aarch64__)
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t count = relocations.bytes / sizeof(ElfW(Rela));
  for (size_t i = 0; i < count; ++i) {
    const ElfW(Rela) & relocation = relocations.first[i];
    const uint32_t type = ELF64_R_TYPE(relocation.r_info);
    if (type != kFunctionRelocations[0] && type != kFunctionRelocations[1]) continue;
    const char* name = names + symbols[ELF64_R_SYM(relocation.r_info)].st_name;
    if (std::strcmp(name, "bind") != 0) continue;
    const uintptr_t entry = base + relocation.r_offset;
    void* const start = reinterpret_cast<void*>(entry / page * page);
    // The loader has made the table read-only. An entry is aligned, so it does not cross pages.
    if (::mprotect(start, page, PROT_READ | PROT_WRITE) != 0) continue;
    *reinterpret_cast<void**>(entry) = reinterpret_cast<void*>(&BindToAddress);
    if (type == kFunctionRelocations[0]) ++redirected;
    // The page stays writable: the loader may still fill in other entries of it.
  }
#endif
  return redirected;
}

// For dl_iterate_phdr.
int RedirectBindOfLibrary(dl_phdr_info* library, size_t, void* total) {
  if (std::strstr(library->dlpi_name, "libtensorflow") == nullptr) return 0;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      entry =
          reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    }
  }
  if (entry == nullptr) return 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  RelocationTable calls, data;
  for (; entry->d_tag != DT_NULL; ++entry) {
    // glibc makes these addresses absolute, other C libraries do not.
    const ElfW(Addr) value = entry->d_un.d_ptr;
    const ElfW(Addr) address = value < library->dlpi_addr ? library->dlpi_addr + value : value;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        names = reinterpret_cast<const char*>(address);
        break;
      case DT_JMPREL:
        calls.first = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        calls.bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        data.first = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_RELASZ:
        data.bytes = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (symbols == nullptr || names == nullptr) return 0;
  int* const redirected = static_cast<int*>(total);
  if (calls.first != nullptr)
    *redirected += RedirectBind(calls, library->dlpi_addr, symbols, names);
  if (data.first != nullptr) *redirected += RedirectBind(data, library->dlpi_addr, symbols, names);
  return 0;
}

}  // namespace

// Makes TensorFlow's servers in this process listen at `address`, an IPv4 or IPv6 number, from now
// on. An empty address lets them listen at every address again. Returns how many calls of bind(2)
// were redirected, or -1 if `address` is not an address.
extern "C" __attribute__((visibility("default"))) int embedps_set_bind_address(
    const char* address) {
  BindAddress to;
  if (::inet_pton(AF_INET, address, &to.v4) == 1) {
    to.family = AF_INET;
  } else if (::inet_pton(AF_INET6, address, &to.v6) == 1) {
    to.family = AF_INET6;
  } else if (*address != '\0') {
    return -1;
  }
  {
    const embedps::MutexLock lock(&mutex);
    bind_address = to;
  }
  int redirected = 0;
  ::dl_iterate_phdr(RedirectBindOfLibrary, &redirected);
  return redirected;
}
