/* socket.h: the socket that a relay's HTTP server listens at. */
#ifndef ADMIN_SOCKET_H
#define ADMIN_SOCKET_H

#include "admin/admin.h"

/* A socket in the file system that is ours. (1) inode == 0: there is none. */
struct socket_file {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    dev_t device;
    ino_t inode;
};

/* What to listen at, and how. */
struct socket_wish {
    const struct admin_address *address;
    int backlog;
    mode_t mode; /* of a file */
};

/* socket_listen gives a listening socket. One in the file system replaces one that nobody listens
 * at any more, but neither one that is in use, nor anything that is no socket. ret_file is where it
 * stands, to be removed at the end. */
int socket_listen(const struct socket_wish *w, struct socket_file *ret_file, int *ret,
                  struct error *err);
/* socket_remove removes the file, if it is still ours. */
void socket_remove(struct socket_file *file);
/* socket_say writes http://127.0.0.1:8025 or unix:PATH. */
void socket_say(int fd, char out[ADMIN_ADDRESS]);

#endif
