#include "peer_server.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sink.h"

#define NOBODY 65534

void peer_server_folder(char dir[64], const char *pattern)
{
    strcpy(dir, pattern);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(dir, NOBODY, NOBODY), 0);
}

int peer_server_port(void)
{
    for (unsigned i = (unsigned)getpid();; i++) {
        int port = 10000 + (int)(i * 7919 % 22000);
        struct sockaddr_in sa = {.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        bool is_free = bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0;
        close(fd);
        if (is_free)
            return port;
    }
}

void peer_server_certificates(const char *dir)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
             "-days 2 -subj /CN=test-ca "
             "-keyout ca.key -out ca.crt 2>/dev/null && openssl req -newkey ec -pkeyopt "
             "ec_paramgen_curve:prime256v1 "
             "-nodes -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout "
             "server.key -out s.csr "
             "2>/dev/null && openssl x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
             "-days 2 "
             "-copy_extensions copy -out server.crt 2>/dev/null && chmod 644 *.key",
             dir);
    assert_int_equal(system(command), 0);
}

void peer_server_become_nobody(void)
{
    if (geteuid() != 0)
        return;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(126);
}
