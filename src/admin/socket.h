/* socket.h: the socket that the HTTP server of a relay listens on. */
#ifndef ADMIN_SOCKET_H
#define ADMIN_SOCKET_H

#include "admin/admin.h"

/* Our socket in the file system. (1) inode == 0: there is none. */
struct socket_file {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    dev_t device;
    ino_t inode;
};

/* Where to listen, and how. */
struct socket_wish {
    const struct admin_address *address;
    int backlog;
    mode_t mode; /* of a unix socket */
};

/* socket_listen returns a listening socket in *ret. In the file system it replaces a socket that no
 * process is listening on, but neither one in use nor any other file. *ret_file is for
 * socket_remove at the end. */
int socket_listen(const struct socket_wish *w, struct socket_file *ret_file, int *ret,
                  struct error *err);
/* socket_remove removes the socket from the file system, if it is still ours. */
void socket_remove(struct socket_file *file);
/* socket_say writes where a socket listens: http://127.0.0.1:8025 or unix:PATH. */
void socket_say(int fd, char out[ADMIN_ADDRESS]);

#endif
