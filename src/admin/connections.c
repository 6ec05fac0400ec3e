/* connections.c: the address to listen on, the listening socket, and the open connections. For a
 * unix socket it makes sure that no other user can replace it. */
#include "admin/connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/ipnet.h"
#include "base/place.h"
#include "base/text.h"

#define LOCK_TRIES 40
#define LOCK_PAUSE_US 50000
#define REQUEST_NS (10 * 1000 * MS_NS) /* to receive a request, however slow the client */
#define ANSWER_NS (30 * 1000 * MS_NS)  /* to prepare the answer and send it */
#define AGAIN_NS (1000 * MS_NS)        /* until a disconnected connection is checked again */
#define FEW_LEFT (CONNECTIONS_MAX - CONNECTIONS_PER_ADDRESS)

/* ---- addresses ---- */

static int refuse_address(const char *text, struct error *err)
{
    return err_set(err, ERR_CONFIG,
                   "\"%s\" is not an address to listen on; use 127.0.0.1:8025, [::1]:8025, "
                   "localhost:8025 or unix:PATH",
                   text);
}

/* Reads 127.0.0.1, localhost or [::1], of n bytes. */
static bool parse_host(const char *text, size_t n, uint16_t port, struct admin_address *ret)
{
    char host[ADMIN_ADDRESS];
    struct sockaddr_storage sa;
    if (n == 0 || n >= sizeof host)
        return false;
    bool brackets = text[0] == '[' && text[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), text + brackets);
    if (strcmp(host, "localhost") == 0 && !brackets)
        snprintf(host, sizeof host, "127.0.0.1");
    if (!ipnet_of_text(host, &sa) || (sa.ss_family == AF_INET6) != brackets)
        return false;

    *ret = (struct admin_address){.size = brackets ? sizeof ret->at.v6 : sizeof ret->at.v4};
    memcpy(&ret->at, &sa, ret->size);
    if (brackets)
        ret->at.v6.sin6_port = htons(port);
    else
        ret->at.v4.sin_port = htons(port);
    return true;
}

int admin_address_parse(const char *text, struct admin_address *ret, struct error *err)
{
    static const char unix_scheme[] = "unix:";
    size_t scheme = sizeof unix_scheme - 1;
    if (strncmp(text, unix_scheme, scheme) == 0) {
        size_t n = strlen(text + scheme);
        if (n == 0)
            return refuse_address(text, err);
        if (n >= sizeof ret->at.un.sun_path)
            return err_set(err, ERR_CONFIG,
                           "the path of a unix socket has at most %zu bytes, not %zu",
                           sizeof ret->at.un.sun_path - 1, n);
        *ret = (struct admin_address){.at.un = {.sun_family = AF_UNIX}, .size = sizeof ret->at.un};
        memcpy(ret->at.un.sun_path, text + scheme, n);
        return 0;
    }

    int64_t port;
    const char *colon = strrchr(text, ':');
    if (!colon || text_int(colon + 1, 0, 65535, &port, NULL) != 0)
        return refuse_address(text, err);
    if (!parse_host(text, (size_t)(colon - text), (uint16_t)port, ret))
        return refuse_address(text, err);
    return 0;
}

bool admin_loopback(const struct admin_address *a)
{
    if (a->at.any.sa_family == AF_UNIX)
        return true;
    if (a->at.any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->at.v6.sin6_addr);
    return ntohl(a->at.v4.sin_addr.s_addr) >> 24 == 127;
}

/* ---- the place in the file system ---- */

/* Refuses a folder where another user could replace our socket: clients would send their tokens
 * there. */
static int check_folder(const struct stat *folder, struct error *err)
{
    bool open_to_all = (folder->st_mode & S_IWOTH) && !(folder->st_mode & S_ISVTX);
    if (open_to_all)
        return err_set(
            err, ERR_CONFIG,
            "any user of this machine can replace the socket; run chmod o-w on its folder");
    if (folder->st_uid != 0 && folder->st_uid != geteuid())
        return err_set(err, ERR_CONFIG,
                       "the folder belongs to another user, who can replace the socket");
    return 0;
}

/* Locks the folder of a path, until *ret is closed. The lock keeps a process that starts at the
 * same time from mistaking our new socket for a stale one. It waits up to two seconds: another
 * relay holds the lock only while it starts. */
static int lock_folder(const char *path, int *ret, struct error *err)
{
    struct place p;
    if (place_find(path, &p, err) != 0)
        return -1;
    int fd = -1, r = check_folder(&p.folder, err);
    if (r == 0) {
        fd = fd_above_stdio(openat(p.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (fd < 0)
            r = err_errno(err, ERR_UNAVAILABLE, errno, "could not open the folder");
    }
    place_release(&p);
    if (r != 0)
        return -1;

    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            *ret = fd;
            return 0;
        }
        usleep(LOCK_PAUSE_US);
    }
    close(fd);
    return err_set(err, ERR_BUSY, "another process has locked the folder; try again");
}

/* Whether a process is listening on a socket; if in doubt, true. */
static bool is_alive(const struct sockaddr_un *un)
{
    int fd = fd_above_stdio(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return true;
    bool refused = connect(fd, (const struct sockaddr *)un, sizeof *un) != 0 &&
                   errno == ECONNREFUSED;
    close(fd);
    return !refused;
}

/* Removes the socket of a process that ended without removing it. */
static int clear_way(const struct sockaddr_un *un, struct error *err)
{
    struct stat st;
    if (lstat(un->sun_path, &st) != 0) {
        if (errno == ENOENT)
            return 0;
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not examine the existing file");
    }
    if (!S_ISSOCK(st.st_mode))
        return err_set(err, ERR_CONFIG,
                       "a file with this name exists and is not a socket; remove it, or use "
                       "another path");
    bool ours = st.st_uid == geteuid() || geteuid() == 0;
    if (!ours)
        return err_set(err, ERR_CONFIG,
                       "the socket belongs to another user; remove it, or use another path");
    if (is_alive(un))
        return err_set(err, ERR_UNAVAILABLE, "another process is listening on this socket");

    if (unlink(un->sun_path) == 0 || errno == ENOENT)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not remove the stale socket");
}

/* ---- listening ---- */

/* Binds the socket with exactly this mode from the first moment on. */
static int bind_file(int fd, const struct sockaddr_un *un, mode_t mode, struct socket_file *ret,
                     struct error *err)
{
    struct stat st;
    mode_t before = umask(~mode & 0777);
    int r = bind(fd, (const struct sockaddr *)un, sizeof *un), e = errno;
    umask(before);
    if (r != 0)
        return err_errno(err, ERR_UNAVAILABLE, e, "could not listen");
    if (lstat(un->sun_path, &st) != 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not examine the new socket");
    *ret = (struct socket_file){.device = st.st_dev, .inode = st.st_ino};
    memcpy(ret->path, un->sun_path, sizeof ret->path);
    return 0;
}

/* Listens on a unix socket. The folder stays locked until the socket listens. */
static int listen_path(int fd, const struct socket_wish *w, struct socket_file *ret,
                       struct error *err)
{
    int folder = -1;
    if (lock_folder(w->address->at.un.sun_path, &folder, err) != 0)
        return -1;
    int r = clear_way(&w->address->at.un, err);
    if (r == 0)
        r = bind_file(fd, &w->address->at.un, w->mode, ret, err);
    if (r == 0 && listen(fd, w->backlog) != 0)
        r = err_errno(err, ERR_UNAVAILABLE, errno, "could not listen");
    close(folder); /* not before we listen: until then the socket looks stale */
    return r;
}

int connections_listen(const struct socket_wish *w, struct socket_file *ret_file, int *ret,
                       struct error *err)
{
    struct socket_file file = {.inode = 0};
    int family = w->address->at.any.sa_family, r;
    int fd = fd_above_stdio(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create a socket");
    if (family == AF_UNIX) {
        r = listen_path(fd, w, &file, err);
    } else {
        /* Listen even if connections of an earlier relay linger on this port. */
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        r = bind(fd, &w->address->at.any, w->address->size);
        if (r == 0)
            r = listen(fd, w->backlog);
        if (r != 0)
            err_errno(err, ERR_UNAVAILABLE, errno, "could not listen");
    }

    if (r != 0) {
        connections_unlisten(&file);
        close(fd);
        return -1;
    }
    *ret_file = file;
    *ret = fd;
    return 0;
}

void connections_unlisten(struct socket_file *file)
{
    struct stat st;
    if (!file->inode)
        return;
    bool ours = lstat(file->path, &st) == 0 && st.st_dev == file->device &&
                st.st_ino == file->inode;
    if (ours)
        unlink(file->path);
    file->inode = 0;
}

void connections_url(int fd, char out[ADMIN_ADDRESS])
{
    struct admin_address a = {.size = sizeof a.at};
    char host[INET6_ADDRSTRLEN] = "";
    getsockname(fd, &a.at.any, &a.size);
    switch (a.at.any.sa_family) {
    case AF_UNIX: snprintf(out, ADMIN_ADDRESS, "unix:%s", a.at.un.sun_path); break;
    case AF_INET6:
        inet_ntop(AF_INET6, &a.at.v6.sin6_addr, host, sizeof host);
        snprintf(out, ADMIN_ADDRESS, "http://[%s]:%d", host, ntohs(a.at.v6.sin6_port));
        break;
    default:
        inet_ntop(AF_INET, &a.at.v4.sin_addr, host, sizeof host);
        snprintf(out, ADMIN_ADDRESS, "http://%s:%d", host, ntohs(a.at.v4.sin_port));
    }
}

/* ---- connections ---- */

/* All functions may be called from any thread. */

void connections_init(struct connections *k)
{
    *k = (struct connections){.connection = {{0}}};
    pthread_mutex_init(&k->lock, NULL);
}

void connections_release(struct connections *k)
{
    pthread_mutex_destroy(&k->lock);
}

static struct connection *find_connection(struct connections *k, int fd)
{
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (k->connection[i].since && k->connection[i].fd == fd)
            return &k->connection[i];
    return NULL;
}

/* Ends a connection. The thread that serves it notices, and closes it. */
static void disconnect(const struct connection *one)
{
    shutdown(one->fd, SHUT_RDWR);
}

/* Disconnects the oldest client whose request is not complete, if few places are left. */
static void make_room(const struct connections *k)
{
    size_t open = 0;
    const struct connection *oldest = NULL;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        if (!one->since)
            continue;
        open++;
        bool waiting = !one->complete;
        if (waiting && (!oldest || one->since < oldest->since))
            oldest = one;
    }
    if (open >= FEW_LEFT && oldest)
        disconnect(oldest);
}

void connections_opened(struct connections *k, int fd, int64_t now)
{
    pthread_mutex_lock(&k->lock);
    make_room(k);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (k->connection[i].since)
            continue;
        k->connection[i] = (struct connection){.fd = fd, .since = now};
        break;
    }
    pthread_mutex_unlock(&k->lock);
}

void connections_request_complete(struct connections *k, int fd, int64_t now)
{
    pthread_mutex_lock(&k->lock);
    struct connection *one = find_connection(k, fd);
    if (one) {
        one->complete = true;
        one->since = now;
    }
    pthread_mutex_unlock(&k->lock);
}

void connections_closed(struct connections *k, int fd)
{
    pthread_mutex_lock(&k->lock);
    struct connection *one = find_connection(k, fd);
    if (one)
        one->since = 0;
    pthread_mutex_unlock(&k->lock);
}

int64_t connections_tick(struct connections *k, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        if (!one->since)
            continue;
        int64_t end = one->since + (one->complete ? ANSWER_NS : REQUEST_NS);
        if (now >= end) {
            disconnect(one);
            end = now + AGAIN_NS;
        }
        if (end < next)
            next = end;
    }
    pthread_mutex_unlock(&k->lock);
    return next;
}
