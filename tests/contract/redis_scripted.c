#include "redis_scripted.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sink.h"

#define CLIENTS 8

struct client {
    int fd; /* -1: none */
    redisReader *reader;
};

struct redis_scripted {
    pthread_t thread;
    int listener, stop[2];
    struct client client[CLIENTS];
    _Atomic(const char *) text;
    unsigned entries;
};

static void answer(struct redis_scripted *m, int fd, const redisReply *command)
{
    char out[4096], id[32];
    const char *text = atomic_load(&m->text), *name = command->element[0]->str;
    if (strcasecmp(name, "XADD") != 0) {
        snprintf(out, sizeof out, "+OK\r\n");
    } else if (text) {
        snprintf(out, sizeof out, "-%s\r\n", text);
    } else {
        int n = snprintf(id, sizeof id, "1748100000000-%u", m->entries++);
        snprintf(out, sizeof out, "$%d\r\n%s\r\n", n, id);
    }
    if (send(fd, out, strlen(out), MSG_NOSIGNAL) < 0)
        return;
}

static void leave(struct client *c)
{
    close(c->fd);
    redisReaderFree(c->reader);
    *c = (struct client){.fd = -1};
}

static void listen_to(struct redis_scripted *m, struct client *c)
{
    char chunk[65536];
    void *command = NULL;
    ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
    if (n <= 0) {
        leave(c);
        return;
    }
    redisReaderFeed(c->reader, chunk, (size_t)n);
    while (redisReaderGetReply(c->reader, &command) == REDIS_OK && command) {
        answer(m, c->fd, command);
        freeReplyObject(command);
    }
}

static void welcome(struct redis_scripted *m)
{
    int fd = accept(m->listener, NULL, NULL);
    for (size_t i = 0; i < CLIENTS; i++) {
        if (m->client[i].fd >= 0)
            continue;
        m->client[i] = (struct client){fd, redisReaderCreate()};
        return;
    }
    close(fd);
}

static void *serve(void *scripted)
{
    struct redis_scripted *m = scripted;
    for (;;) {
        struct pollfd fds[CLIENTS + 2] = {{m->stop[0], POLLIN, 0}, {m->listener, POLLIN, 0}};
        for (size_t i = 0; i < CLIENTS; i++)
            fds[i + 2] = (struct pollfd){m->client[i].fd, POLLIN, 0};
        if (poll(fds, CLIENTS + 2, -1) < 0)
            continue;
        if (fds[0].revents)
            return NULL;
        for (size_t i = 0; i < CLIENTS; i++)
            if (fds[i + 2].revents)
                listen_to(m, &m->client[i]);
        if (fds[1].revents)
            welcome(m);
    }
}

struct redis_scripted *redis_scripted_new(const char *path)
{
    struct redis_scripted *m = calloc(1, sizeof *m);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    for (size_t i = 0; i < CLIENTS; i++)
        m->client[i].fd = -1;
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    m->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(m->listener, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(m->listener, 16), 0);
    assert_int_equal(pipe(m->stop), 0);
    assert_int_equal(pthread_create(&m->thread, NULL, serve, m), 0);
    return m;
}

void redis_scripted_free(struct redis_scripted *m)
{
    assert_int_equal(write(m->stop[1], "", 1), 1);
    pthread_join(m->thread, NULL);
    for (size_t i = 0; i < CLIENTS; i++)
        if (m->client[i].fd >= 0)
            leave(&m->client[i]);
    close(m->listener);
    close(m->stop[0]);
    close(m->stop[1]);
    free(m);
}

void redis_scripted_say(struct redis_scripted *m, const char *text)
{
    atomic_store(&m->text, text);
}
