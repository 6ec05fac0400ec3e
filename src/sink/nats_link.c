/* nats_link.c: a link's thread, and the queues between this thread and the sink. */
#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/text.h"
#include "sink/nats_impl.h"

#define BUFFERED_ENOUGH (1 << 20) /* bytes; above it, libnats receives no more messages */

/* Lifetime */

static void free_queue(struct nats_queue *q)
{
    for (size_t i = q->first; i < q->n; i++)
        natsMsg_Destroy(q->at[i].msg);
    free(q->at);
}

static void clear_answers(struct nats_answers *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->at[i].text);
    a->n = 0;
}

static void free_link(struct nats_link *l)
{
    if (l->update_fd >= 0)
        close(l->update_fd);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    clear_answers(&l->reading);
    clear_answers(&l->answers);
    free(l->reading.at);
    free(l->answers.at);
    free_queue(&l->sending);
    free_queue(&l->outgoing);
    natsMsg_Destroy(l->reply);
    nats_stream_release(&l->stream);
    pthread_cond_destroy(&l->ended_cond);
    pthread_mutex_destroy(&l->lock);
    nats_plan_release(l->plan);
    free(l);
}

void nats_link_ref(struct nats_link *l)
{
    pthread_mutex_lock(&l->lock);
    l->refs++;
    pthread_mutex_unlock(&l->lock);
}

void nats_link_unref(struct nats_link *l)
{
    pthread_mutex_lock(&l->lock);
    int left = --l->refs;
    pthread_mutex_unlock(&l->lock);
    if (left == 0)
        free_link(l);
}

/* Errors */

void nats_link_text(natsStatus s, char *out, size_t size)
{
    const char *said = nats_GetLastError(NULL);
    if (!said || !*said)
        said = natsStatus_GetText(s);
    text_clean(out, size, said, strlen(said));
}

int nats_link_failed(const struct nats_plan *p, natsStatus s, const char *what, struct error *err)
{
    char said[200];
    nats_link_text(s, said, sizeof said);
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, (int)s, "%s: %s: %s", p->url.label, what,
                     said);
}

/* For the link's thread */

/* Makes room for one more element after n in a list; returns the list, or NULL if out of memory. */
static void *make_room(void *list, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return list;
    size_t more = *cap ? *cap * 2 : 256;
    void *grown = reallocarray(list, more, size);
    if (grown)
        *cap = more;
    return grown;
}

void nats_link_push(struct nats_link *l, struct nats_answer a)
{
    pthread_mutex_lock(&l->lock);
    struct nats_answers *all = &l->answers;
    struct nats_answer *at = make_room(all->at, all->n, &all->cap, sizeof *at);
    if (!at) { /* without a reply, the event times out in the sink */
        pthread_mutex_unlock(&l->lock);
        free(a.text);
        return;
    }
    all->at = at;
    bool first = all->n == 0;
    all->at[all->n++] = a;
    pthread_mutex_unlock(&l->lock);
    if (first)
        wake_fd_signal(l->update_fd);
}

static void set_state(struct nats_link *l, enum nats_link_state state, const struct error *err)
{
    pthread_mutex_lock(&l->lock);
    l->state = state;
    if (err)
        l->lost = *err;
    pthread_mutex_unlock(&l->lock);
    wake_fd_signal(l->update_fd);
}

/* Reports why the connection was lost. */
static int connection_gone(struct nats_link *l, struct error *err)
{
    const char *said = NULL;
    natsStatus s = natsConnection_GetLastError(l->nc, &said);
    char text[200];
    if (!said || !*said)
        said = s == NATS_OK ? "the connection was closed" : natsStatus_GetText(s);
    text_clean(text, sizeof text, said, strlen(said));
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, (int)s, "%s: %s", l->plan->url.label, text);
}

static bool is_dropped(struct nats_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool dropped = l->dropped;
    pthread_mutex_unlock(&l->lock);
    return dropped;
}

int nats_link_process(struct nats_link *l, int timeout_ms, struct error *err)
{
    pthread_mutex_lock(&l->lock);
    struct pollfd fds[] = {{.fd = l->wake_fd, .events = POLLIN}, {.fd = l->fd, .events = POLLIN}};
    if (l->want_write)
        fds[1].events |= POLLOUT;
    pthread_mutex_unlock(&l->lock);

    if (poll(fds, 2, timeout_ms) < 0)
        return 0;
    if (fds[0].revents)
        wake_fd_clear(l->wake_fd);
    if (is_dropped(l))
        return err_set(err, ERR_UNAVAILABLE, "the link was dropped");
    if (fds[1].revents & POLLOUT)
        natsConnection_ProcessWriteEvent(l->nc);
    if (fds[1].revents & ~POLLOUT)
        natsConnection_ProcessReadEvent(l->nc);
    if (natsConnection_IsClosed(l->nc))
        return connection_gone(l, err);
    return 0;
}

/* Takes over the sink's queue once all earlier messages are sent. Returns whether a message remains
 * to be sent. */
static bool take_queue(struct nats_link *l)
{
    struct nats_queue *q = &l->sending;
    if (q->first < q->n)
        return true;
    q->first = 0;
    q->n = 0;
    pthread_mutex_lock(&l->lock);
    struct nats_queue empty = *q;
    *q = l->outgoing;
    l->outgoing = empty;
    pthread_mutex_unlock(&l->lock);
    return q->n > 0;
}

static void publish_one(struct nats_link *l, struct nats_outgoing *o)
{
    natsStatus s = natsConnection_PublishMsg(l->nc, o->msg);
    natsMsg_Destroy(o->msg);
    if (s == NATS_MAX_PAYLOAD)
        nats_link_push(l, (struct nats_answer){.token = o->token, .kind = NATS_TOO_LARGE});
    /* The next nats_link_process reports any other failure, which concerns the connection. */
}

/* Passes messages to libnats, which copies them into its buffer. Stops once the buffer holds
 * BUFFERED_ENOUGH bytes. */
static void send_some(struct nats_link *l)
{
    while (natsConnection_Buffered(l->nc) < BUFFERED_ENOUGH && take_queue(l))
        publish_one(l, &l->sending.at[l->sending.first++]);
}

/* Tries the hosts in turn, starting after the last host that failed. */
static int connect_any(struct nats_link *l, struct error *err)
{
    const struct url *u = &l->plan->url;
    for (size_t i = 0; i < u->n_hosts; i++) {
        size_t host = atomic_load(&l->plan->host) % u->n_hosts;
        if (is_dropped(l))
            return err_set(err, ERR_UNAVAILABLE, "the link was dropped");
        if (nats_connect_host(l, &u->hosts[host], err) == 0)
            return 0;
        atomic_fetch_add(&l->plan->host, 1);
    }
    return -1;
}

/* Closes the connection without sending libnats' buffer. The library's own close would first try to
 * send the buffer for half a second. */
static void disconnect(struct nats_link *l)
{
    if (!l->nc)
        return;
    pthread_mutex_lock(&l->lock);
    int fd = l->fd;
    pthread_mutex_unlock(&l->lock);
    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
        natsConnection_ProcessReadEvent(l->nc);
    }
    natsSubscription_Destroy(l->sub);
    natsConnection_Destroy(l->nc);
    l->sub = NULL;
    l->nc = NULL;
}

static void *link_thread(void *arg)
{
    struct nats_link *l = arg;
    struct error err = {0};
    bool ready = connect_any(l, &err) == 0 && nats_prepare(l, &err) == 0;
    if (ready) {
        set_state(l, NATS_READY, NULL);
        /* If messages remain, libnats' buffer is full, and the loop continues when the socket
         * becomes writable. */
        do
            send_some(l);
        while (nats_link_process(l, -1, &err) == 0);
    }
    if (l->nc) /* the next attempt uses another server */
        atomic_fetch_add(&l->plan->host, 1);
    set_state(l, NATS_LOST, &err);
    disconnect(l);
    nats_ReleaseThreadMemory();
    /* otherwise OpenSSL would clean up later, possibly after the end of the program */
    OPENSSL_thread_stop();

    pthread_mutex_lock(&l->lock);
    l->ended = true;
    pthread_cond_broadcast(&l->ended_cond);
    pthread_mutex_unlock(&l->lock);
    atomic_fetch_sub(&l->plan->threads, 1);
    nats_link_unref(l);
    return NULL;
}

/* For the sink */

/* Starts the thread with all signals blocked, because signals belong to the host program. Threads
 * that libnats starts from it inherit the mask. */
static int start_thread(struct nats_link *l)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, link_thread, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

int nats_link_start(struct nats_plan *plan, struct nats_link **ret, struct error *err)
{
    if (atomic_load(&plan->threads) >= NATS_LINKS_MAX)
        return err_set(err, ERR_UNAVAILABLE,
                       "%s: %d connection attempts are still waiting for a reply", plan->url.label,
                       NATS_LINKS_MAX);
    struct nats_link *l = calloc(1, sizeof *l);
    if (!l)
        return err_nomem(err);
    l->plan = plan;
    atomic_fetch_add(&plan->refs, 1);
    l->refs = 1;
    l->fd = -1;
    l->handshake_fd = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->ended_cond, NULL);
    l->update_fd = wake_fd_new();
    l->wake_fd = wake_fd_new();

    bool has_fds = l->update_fd >= 0 && l->wake_fd >= 0;
    int rc = has_fds ? 0 : EMFILE;
    if (rc == 0) {
        l->refs++;
        atomic_fetch_add(&plan->threads, 1);
        rc = start_thread(l);
    }
    if (rc == 0) {
        *ret = l;
        return 0;
    }
    if (has_fds) {
        l->refs--;
        atomic_fetch_sub(&plan->threads, 1);
    }
    err_errno(err, ERR_UNAVAILABLE, rc, "%s: could not start a thread", plan->url.label);
    nats_link_unref(l);
    return -1;
}

void nats_link_drop(struct nats_link *l, int64_t wait_ms)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->dropped = true;
    if (l->fd >= 0) /* interrupts any blocking call of libnats */
        shutdown(l->fd, SHUT_RDWR);
    if (l->handshake_fd >= 0)
        shutdown(l->handshake_fd, SHUT_RDWR);
    wake_fd_signal(l->wake_fd);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + wait_ms * MS_NS;
    until.tv_sec += ns / (1000 * MS_NS);
    until.tv_nsec = ns % (1000 * MS_NS);
    while (wait_ms > 0 && !l->ended)
        if (pthread_cond_timedwait(&l->ended_cond, &l->lock, &until) != 0)
            break;
    pthread_mutex_unlock(&l->lock);
    nats_link_unref(l);
}

enum nats_link_state nats_link_poll(struct nats_link *l)
{
    wake_fd_clear(l->update_fd);
    clear_answers(&l->reading);
    pthread_mutex_lock(&l->lock);
    struct nats_answers read = l->reading;
    l->reading = l->answers;
    l->answers = read;
    enum nats_link_state state = l->state;
    pthread_mutex_unlock(&l->lock);
    return state;
}

int nats_link_send(struct nats_link *l, uint64_t token, natsMsg *msg)
{
    pthread_mutex_lock(&l->lock);
    struct nats_queue *q = &l->outgoing;
    struct nats_outgoing *at = make_room(q->at, q->n, &q->cap, sizeof *at);
    if (at) {
        q->at = at;
        q->at[q->n++] = (struct nats_outgoing){token, msg};
    }
    pthread_mutex_unlock(&l->lock);
    return at ? 0 : -1;
}

void nats_link_flush(struct nats_link *l)
{
    wake_fd_signal(l->wake_fd);
}
