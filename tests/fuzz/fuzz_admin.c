/* Requests to a relay's own HTTP server, the real one, at a port of its own. The input is what a client says before it says no
 * more. The answer, if there is one, is a whole one; only GET and HEAD of a page that is there give 200; a request that is no
 * request never does; and the server goes on. As an address to listen at, the input is read or refused. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "admin/admin.h"
#include "fuzz.h"
#include "outbox.h"

#define ANSWER_MAX (1 << 20)

static char answer[ANSWER_MAX + 1];
static struct admin *server;
static struct admin_address at;

static void start(void)
{
    static atomic_llong reloads[2];
    static outbox *ob;
    char url[ADMIN_ADDRESS];
    outbox_error oe;
    struct error err;
    if (outbox_open("sqlite::memory:", NULL, &ob, &oe) != 0) abort();
    struct admin_config cfg = {.ob = ob, .store = "sqlite", .patience_ms = 1000, .reloads = reloads, .wake_fd = -1};
    if (admin_address_parse("127.0.0.1:0", &at, &err) != 0 || admin_start(&cfg, &at, &server, url, &err) != 0) abort();
    at.at.v4.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
}

/* ask gives how much of an answer came before the server hung up. */
static size_t ask(const void *p, size_t n)
{
    size_t got = 0;
    ssize_t k = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &at.at.any, at.size) != 0) abort();
    if (n && send(fd, p, n, MSG_NOSIGNAL) < 0) k = 0; /* it may have had enough */
    shutdown(fd, SHUT_WR);
    while (k > 0 && got < ANSWER_MAX) {
        k = recv(fd, answer + got, ANSWER_MAX - got, 0);
        if (k > 0) got += (size_t)k;
    }
    close(fd);
    answer[got] = '\0';
    return got;
}

static bool asks_for_a_page(const char *p, size_t n)
{
    static const char *const paths[] = {"/metrics", "/livez", "/readyz", "/"};
    /* The server forgives empty lines in front, and takes blanks for one another. */
    while (n && (*p == '\r' || *p == '\n')) p++, n--;
    size_t method = n > 4 && memcmp(p, "GET", 3) == 0 ? 3 : n > 5 && memcmp(p, "HEAD", 4) == 0 ? 4 : 0;
    if (!method) return false;
    for (size_t i = 0; i < 4; i++)
        if (memmem(p + method, n - method, paths[i], strlen(paths[i])) || memchr(p, '%', n)) return true;
    return false;
}

static void judge(const char *p, size_t n, size_t got)
{
    int status = 0;
    if (got == 0) return;
    MUST(sscanf(answer, "HTTP/1.%*1[01] %3d ", &status) == 1 && strstr(answer, "\r\n\r\n"));
    if (status < 400) MUST((status == 200 || status == 100) && asks_for_a_page(p, n));
    if (status == 200 || status == 404 || status == 405 || status == 503) {
        MUST(strstr(answer, "\r\nX-Content-Type-Options: nosniff\r\n") &&
             strstr(answer, "\r\nCache-Control: no-store\r\n"));
        MUST(status != 405 || strstr(answer, "\r\nAllow: GET, HEAD\r\n"));
    }
}

/* alive: the server answers as it should. It may hang up on one who comes while all its places are still being cleared. */
static bool alive(void)
{
    static const char request[] = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int i = 0; i < 500; i++) {
        if (ask(request, strlen(request)) > 0) return strstr(answer, " 200 ") != NULL;
        poll(NULL, 0, 10);
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static unsigned asked;
    struct admin_address a;
    struct error err = {0};
    char *text = fuzz_text(data, n);
    if (!server) start();
    if (admin_address_parse(text, &a, &err) == 0) MUST(a.size > 0 && (admin_loopback(&a), true));
    else MUST(err.code == ERR_CONFIG && err.text[0]);
    judge(text, n, ask(data, n));
    if (++asked % 64 == 0) MUST(alive());
    free(text);
    return 0;
}
