// Lets only processes that know a server's secret talk to it, by TensorFlow's sockets.
//
// TensorFlow's gRPC servers ask nobody who they are. This library replaces the functions of
// libc through which one shared object (TensorFlow's, in which gRPC is) makes connections:
//
// - `connect` reaches only the servers of the job, and sends the secret of the server
//   before anything else: at once, or, since gRPC connects without waiting, when gRPC
//   asks by `getsockopt(SO_ERROR)` whether the connection is there.
// - `accept` returns only connections that begin with the secret, and closes all others.
//   It never waits: by TCP_DEFER_ACCEPT the kernel holds back those that send nothing.
// - `bind` limits a job on one host to the loopback interface.
//
// So the data that follow cost nothing. The sockets of other objects, as of MPI and Python,
// are not touched: a call from one object to another goes through a pointer in the caller's
// global offset table (GOT), and only that of the named object is changed.

#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECRET_BYTES 32
#define MAX_FILES 65536   // A connection with a higher descriptor is refused.
#define SILENT_SECONDS 3  // A connection without a byte is dropped after these.

typedef struct {
  uint8_t address[4], port[2];  // In the order of the network.
  uint8_t secret[SECRET_BYTES];
} Peer;

static Peer *peers, own;  // `own` is this process's server, by its loopback address.
static int num_peers, held_port, listens_locally;
static _Atomic(const Peer*) connecting[MAX_FILES];  // NULL once the secret is sent.

static int is_tcp(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_TCP;
}

// Writes an IPv4 address, which may be mapped to IPv6, and the port; 0 for other addresses.
static int to_ipv4(const struct sockaddr* from, uint8_t address[4], uint8_t port[2]) {
  if (from->sa_family == AF_INET) {
    const struct sockaddr_in* v4 = (const struct sockaddr_in*)from;
    memcpy(address, &v4->sin_addr, 4);
    memcpy(port, &v4->sin_port, 2);
    return 1;
  }
  const struct sockaddr_in6* v6 = (const struct sockaddr_in6*)from;
  if (from->sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return 0;
  memcpy(address, &v6->sin6_addr.s6_addr[12], 4);
  memcpy(port, &v6->sin6_port, 2);
  return 1;
}

static const Peer* find_peer(const struct sockaddr* to) {
  Peer key;
  if (!to_ipv4(to, key.address, key.port)) return NULL;
  if (memcmp(&key, &own, 6) == 0) return &own;
  for (int i = 0; i < num_peers; ++i) {
    if (memcmp(&key, &peers[i], 6) == 0) return &peers[i];
  }
  return NULL;
}

// Returns whether the secret was sent; an empty buffer takes it whole.
static int send_secret(int fd, const Peer* peer) {
  const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
  return send(fd, peer->secret, SECRET_BYTES, flags) == SECRET_BYTES;
}

static int guarded_connect(int fd, const struct sockaddr* to, socklen_t size) {
  if (fd >= 0 && fd < MAX_FILES) atomic_store(&connecting[fd], NULL);  // An earlier file's.
  if (!is_tcp(fd)) return connect(fd, to, size);
  const Peer* peer = find_peer(to);
  if (peer == NULL || fd >= MAX_FILES) {
    errno = ECONNREFUSED;
    return -1;
  }
  atomic_store(&connecting[fd], peer);
  if (connect(fd, to, size)) {
    if (errno != EINPROGRESS) atomic_store(&connecting[fd], NULL);
    return -1;
  }
  atomic_store(&connecting[fd], NULL);
  if (send_secret(fd, peer)) return 0;
  errno = ECONNRESET;
  return -1;
}

static int guarded_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  const int result = getsockopt(fd, level, name, value, size);
  if (result || level != SOL_SOCKET || name != SO_ERROR || fd < 0 || fd >= MAX_FILES) {
    return result;
  }
  const Peer* peer = atomic_exchange(&connecting[fd], NULL);
  int* error = value;
  if (peer != NULL && *error == 0 && !send_secret(fd, peer)) *error = ECONNRESET;
  return 0;
}

// Returns whether a new connection begins with the secret, in a time that doesn't tell how
// much of it was right. The secret comes in one segment.
static int knows_secret(int fd) {
  uint8_t received[SECRET_BYTES];
  uint8_t difference = 0;
  if (recv(fd, received, SECRET_BYTES, MSG_DONTWAIT) != SECRET_BYTES) return 0;
  for (int i = 0; i < SECRET_BYTES; ++i) difference |= received[i] ^ own.secret[i];
  return difference == 0;
}

static int guarded_accept4(int fd, struct sockaddr* from, socklen_t* size, int flags) {
  const socklen_t room = size == NULL ? 0 : *size;
  const int has_secret = is_tcp(fd);
  for (;;) {
    if (size != NULL) *size = room;
    const int accepted = accept4(fd, from, size, flags);
    if (accepted < 0 || !has_secret) return accepted;
    if (accepted < MAX_FILES) atomic_store(&connecting[accepted], NULL);
    if (knows_secret(accepted)) return accepted;
    close(accepted);
  }
}

static int guarded_accept(int fd, struct sockaddr* from, socklen_t* size) {
  return guarded_accept4(fd, from, size, 0);
}

static int guarded_listen(int fd, int backlog) {
  if (!is_tcp(fd)) return listen(fd, backlog);
  const int seconds = SILENT_SECONDS;
  struct sockaddr_in bound;  // The port of an IPv6 address is in the same place.
  socklen_t size = sizeof bound;
  if (setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds) ||
      getsockname(fd, (struct sockaddr*)&bound, &size)) {
    return -1;
  }
  const uint32_t loopback = htonl(INADDR_LOOPBACK);
  memcpy(own.address, &loopback, sizeof own.address);
  memcpy(own.port, &bound.sin_port, sizeof own.port);
  return listen(fd, backlog);
}

static int guarded_bind(int fd, const struct sockaddr* address, socklen_t size) {
  struct sockaddr_storage to = {0};
  if (!is_tcp(fd) || size > sizeof to) return bind(fd, address, size);
  memcpy(&to, address, size);
  struct sockaddr_in* v4 = (struct sockaddr_in*)&to;
  struct sockaddr_in6* v6 = (struct sockaddr_in6*)&to;
  static const uint8_t loopback[16] = {[10] = 255, 255, 127, 0, 0, 1};  // Mapped to IPv6.
  if (listens_locally && to.ss_family == AF_INET) memcpy(&v4->sin_addr, loopback + 12, 4);
  if (listens_locally && to.ss_family == AF_INET6) memcpy(&v6->sin6_addr, loopback, 16);
  const int is_on = 1;
  if (held_port != 0 && ntohs(v4->sin_port) == held_port &&
      setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &is_on, sizeof is_on)) {
    return -1;
  }
  return bind(fd, (struct sockaddr*)&to, size);
}

typedef struct {
  const char* name;
  void* function;
  int is_needed, is_replaced;
} Replacement;

static Replacement replacements[] = {
    {"connect", guarded_connect, 1, 0}, {"getsockopt", guarded_getsockopt, 1, 0},
    {"accept", guarded_accept, 0, 0},   {"accept4", guarded_accept4, 1, 0},
    {"listen", guarded_listen, 1, 0},   {"bind", guarded_bind, 1, 0},
};
enum { NUM_REPLACEMENTS = sizeof replacements / sizeof replacements[0] };

// Sets a pointer of the GOT, which the loader may have made read-only.
static int set_pointer(void** place, void* function) {
  const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  void* page = (void*)((uintptr_t)place & ~(page_bytes - 1));
  if (mprotect(page, page_bytes, PROT_READ | PROT_WRITE)) return 0;
  __atomic_store_n(place, function, __ATOMIC_RELEASE);
  return 1;
}

static void replace_in(uintptr_t base, const ElfW(Rela) * relocations, size_t bytes,
                       const ElfW(Sym) * symbols, const char* names) {
  for (size_t i = 0; i < bytes / sizeof *relocations; ++i) {
    const size_t symbol = ELF64_R_SYM(relocations[i].r_info);
    if (symbol == 0) continue;
    const char* name = names + symbols[symbol].st_name;
    for (int j = 0; j < NUM_REPLACEMENTS; ++j) {
      if (strcmp(name, replacements[j].name)) continue;
      void** place = (void**)(base + relocations[i].r_offset);
      if (set_pointer(place, replacements[j].function)) replacements[j].is_replaced = 1;
    }
  }
}

static int replace_if_named(struct dl_phdr_info* object, size_t size, void* part_of_name) {
  (void)size;
  if (object->dlpi_name == NULL || !strstr(object->dlpi_name, part_of_name)) return 0;
  const ElfW(Dyn)* entry = NULL;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    entry = (const ElfW(Dyn)*)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  }
  uintptr_t values[DT_JMPREL + 1] = {0};
  for (; entry != NULL && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag >= 0 && entry->d_tag <= DT_JMPREL) {
      values[entry->d_tag] = entry->d_un.d_ptr;
    }
  }
  const ElfW(Sym)* symbols = (const ElfW(Sym)*)values[DT_SYMTAB];
  const char* names = (const char*)values[DT_STRTAB];
  if (symbols == NULL || names == NULL) return 0;
  const ElfW(Addr) base = object->dlpi_addr;
  replace_in(base, (ElfW(Rela)*)values[DT_JMPREL], values[DT_PLTRELSZ], symbols, names);
  replace_in(base, (ElfW(Rela)*)values[DT_RELA], values[DT_RELASZ], symbols, names);
  return 0;
}

// Guards the sockets of loaded objects whose path has `part_of_name`. `servers` has a Peer
// for each address of each server. That of this process asks for `secret`, and listens at
// `port` (if not 0), which a socket with SO_REUSEPORT holds, on loopback alone if `local`.
// Returns the name of the function that could not be replaced, if any, else "".
__attribute__((visibility("default"))) const char* resnet_guard_sockets(
    const char* part_of_name, const void* servers, int num_servers, const void* secret,
    int port, int local) {
  peers = malloc((size_t)num_servers * sizeof(Peer));
  if (peers == NULL) return "malloc";
  memcpy(peers, servers, (size_t)num_servers * sizeof(Peer));
  memcpy(own.secret, secret, SECRET_BYTES);
  num_peers = num_servers;
  held_port = port;
  listens_locally = local;
  dl_iterate_phdr(replace_if_named, (void*)part_of_name);
  for (int i = 0; i < NUM_REPLACEMENTS; ++i) {
    if (replacements[i].is_needed && !replacements[i].is_replaced) {
      return replacements[i].name;
    }
  }
  return "";
}
