#include "redis_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sink.h"

#define NOBODY 65534
#define START_MAX 6000 /* tries of 10 ms */

/* free_port gives a port below those that the kernel hands out to clients, so that nobody gets it
 * by chance, even while the server is down. */
static int free_port(void)
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

static void make_certificates(const struct redis_server *s)
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
             s->dir);
    assert_int_equal(system(command), 0);
}

static void become_nobody(void)
{
    if (geteuid() != 0)
        return;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(126);
}

static void exec_server(const struct redis_server *s)
{
    char port[16], log[96];
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(log, sizeof log, "%s/log", s->dir);
    become_nobody();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of user, which clears it */
    char cert[96], key[96], ca[96];
    snprintf(cert, sizeof cert, "%s/server.crt", s->dir);
    snprintf(key, sizeof key, "%s/server.key", s->dir);
    snprintf(ca, sizeof ca, "%s/ca.crt", s->dir);
    const char *argv[] = {"redis-server",
                          "--port",
                          "0",
                          "--unixsocket",
                          s->socket,
                          "--dir",
                          s->dir,
                          "--save",
                          "",
                          "--appendonly",
                          "yes",
                          "--appendfsync",
                          "no", /* With everysec, a kill would lose writes that were answered. */
                          "--logfile",
                          log,
                          "--enable-debug-command",
                          "yes",
                          s->port ? "--tls-port" : NULL,
                          port,
                          "--bind",
                          "127.0.0.1",
                          "--tls-cert-file",
                          cert,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          NULL};
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static bool answers(struct redis_server *s)
{
    s->db = redisConnectUnix(s->socket);
    if (s->db && !s->db->err) {
        redisReply *r = redisCommand(s->db, "PING");
        bool good = r && r->type == REDIS_REPLY_STATUS;
        if (r)
            freeReplyObject(r);
        if (good)
            return true;
    }
    if (s->db)
        redisFree(s->db);
    s->db = NULL;
    return false;
}

void redis_server_start(struct redis_server *s, bool tls)
{
    if (!s->dir[0]) {
        strcpy(s->dir, "/tmp/obrdXXXXXX");
        assert_non_null(mkdtemp(s->dir));
        assert_int_equal(chmod(s->dir, 0755), 0);
        if (geteuid() == 0)
            assert_int_equal(chown(s->dir, NOBODY, NOBODY), 0);
        snprintf(s->socket, sizeof s->socket, "%s/s", s->dir);
        if (tls)
            make_certificates(s);
        s->port = tls ? free_port() : 0;
    }
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0)
        exec_server(s);
    for (int i = 0; !answers(s); i++) {
        if (i == START_MAX || waitpid(s->pid, NULL, WNOHANG) != 0)
            fail_msg("redis-server did not start, see %s", s->dir);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

void redis_server_kill(struct redis_server *s)
{
    if (s->db)
        redisFree(s->db);
    s->db = NULL;
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void redis_server_remove(struct redis_server *s)
{
    redis_server_kill(s);
    if (s->dir[0])
        sink_tmp_remove(s->dir);
    *s = (struct redis_server){0};
}

static redisReply *command(struct redis_server *s, const char *fmt, va_list ap)
{
    redisReply *r = redisvCommand(s->db, fmt, ap);
    if (!r)
        fail_msg("%s: %s", fmt, s->db->errstr);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", fmt, r->str);
    return r;
}

redisReply *redis_do(struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = command(s, fmt, ap);
    va_end(ap);
    return r;
}

void redis_set(struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    freeReplyObject(command(s, fmt, ap));
    va_end(ap);
}
