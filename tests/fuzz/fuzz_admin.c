/* Requests to a relay's real HTTP server, once without a token and once with one. The input is
 * everything that a client sends. An answer is complete; only GET and HEAD of an existing page
 * return 200, and never for a malformed request, a foreign host name, or a page of another origin;
 * without the token only /livez and /readyz do; and the server keeps running. The input is also
 * parsed, or refused, as an address to listen on and as a Host. */
#include <arpa/inet.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "admin/access.h"
#include "admin/admin.h"
#include "ask.h"
#include "fuzz.h"
#include "outbox.h"

#define ANSWER_MAX (1 << 20)

static char answer[ANSWER_MAX + 1];
#define VARIABLE "OUTBOX_FUZZ_TOKEN"
#define TOKEN "0123456789abcdef0123456789abcdef"

/* One server requires a token, the other does not. */
static struct peer {
    struct admin *server;
    struct admin_address at;
    bool asks;
    struct admin_config cfg;
} peers[2];

static void start(struct peer *p, outbox *ob)
{
    char url[ADMIN_ADDRESS];
    struct error err;
    struct admin_door door = {.tokens = NULL};
    p->cfg = (struct admin_config){.ob = ob, .store = "sqlite", .patience_ms = 1000, .wake_fd = -1};
    if (p->asks && access_tokens_load(NULL, VARIABLE, &door.tokens, &err) != 0)
        abort();
    if (admin_address_parse("127.0.0.1:0", &door.address, &err) != 0)
        abort();
    if (admin_start(&p->cfg, &door, &p->server, url, &err) != 0)
        abort();
    p->at = door.address;
    p->at.at.v4.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
}

static void start_both(void)
{
    outbox *ob;
    outbox_error oe;
    if (setenv(VARIABLE, TOKEN, 1) != 0 || outbox_open("sqlite::memory:", NULL, &ob, &oe) != 0)
        abort();
    peers[1].asks = true;
    for (int i = 0; i < 2; i++)
        start(&peers[i], ob);
}

/* ask returns the number of bytes of the answer before the server closed the connection. */
static size_t ask(const struct peer *peer, const void *p, size_t n)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &peer->at.at.any, peer->at.size) != 0)
        abort();
    return ask_over(fd, p, n, answer, ANSWER_MAX);
}

/* in_front returns the length of leading empty lines, which the server ignores. It treats a line
 * that begins with a NUL as empty. */
static size_t in_front(const char *p, size_t n)
{
    size_t at = 0;
    while (at < n) {
        if (p[at] == '\0') {
            const char *eol = memchr(p + at, '\n', n - at);
            at = eol ? (size_t)(eol - p) : n;
        } else if (p[at] != '\r' && p[at] != '\n') {
            break;
        }
        if (at < n)
            at++;
    }
    return at;
}

static bool asks_for_a_page(const char *p, size_t n)
{
    static const char *const paths[] = {"/metrics", "/livez", "/readyz", "/"};
    size_t empty = in_front(p, n); /* white space that the server does not distinguish */
    p += empty;
    n -= empty;
    size_t method = n > 4 && memcmp(p, "GET", 3) == 0    ? 3
                    : n > 5 && memcmp(p, "HEAD", 4) == 0 ? 4
                                                         : 0;
    if (!method)
        return false;
    for (size_t i = 0; i < 4; i++)
        if (memmem(p + method, n - method, paths[i], strlen(paths[i])) || memchr(p, '%', n))
            return true;
    return false;
}

/* has tells whether the word occurs, in upper or lower case. */
static bool has(const char *p, size_t n, const char *word)
{
    size_t k = strlen(word);
    for (size_t i = 0; i + k <= n; i++)
        if (strncasecmp(p + i, word, k) == 0)
            return true;
    return false;
}

/* head_of is the length of the head: up to the first empty line after those in front. A line that
 * begins with a NUL is empty to the server. That admits no additional client, since no browser
 * sends such lines. */
static size_t head_of(const char *p, size_t n)
{
    for (size_t at = in_front(p, n); at + 1 < n; at++) {
        if (p[at] != '\n')
            continue;
        size_t next = at + 1;
        if (p[next] == '\r' && next + 1 < n)
            next++;
        if (p[next] == '\n' || p[next] == '\0')
            return at + 1;
    }
    return n;
}

static bool from_our_own_page(const char *p, size_t n)
{
    n = head_of(p, n);
    return !has(p, n, "\nOrigin:") || has(p, n, "://localhost") || has(p, n, "://127.") ||
           has(p, n, "://[");
}

static bool for_our_own_name(const char *p, size_t n)
{
    return has(p, n, "localhost") || has(p, n, "127.") || has(p, n, "[") || has(p, n, "HTTP/1.0");
}

static void judge(const struct peer *peer, const char *p, size_t n, size_t got)
{
    int status = 0;
    if (got == 0)
        return;
    MUST(sscanf(answer, "HTTP/1.%*1[01] %3d ", &status) == 1 && strstr(answer, "\r\n\r\n"));
    if (status < 400) {
        MUST((status == 200 || status == 100) && asks_for_a_page(p, n));
        MUST(for_our_own_name(p, n) && from_our_own_page(p, n));
    }
    if (status == 200 && peer->asks && !memmem(p, n, TOKEN, strlen(TOKEN)))
        MUST(!strstr(answer, "outbox_") && !strstr(answer, OUTBOX_VERSION) &&
             !strstr(answer, "[+]"));
    bool ours = strstr(answer, "\r\nCache-Control: no-store\r\n");
    if (status == 200 || status == 401 || status == 404 || status == 503)
        MUST(ours);
    if (ours) {
        MUST(strstr(answer, "\r\nX-Content-Type-Options: nosniff\r\n"));
        MUST(strstr(answer,
                    "\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"));
        MUST(status != 405 || strstr(answer, "\r\nAllow: GET, HEAD\r\n"));
        MUST(status != 401 || (peer->asks && strstr(answer, "\r\nWWW-Authenticate: Bearer ")));
    }
}

/* alive checks that the server answers. It may disconnect a client that arrives while it still
 * clears all its connections. */
static bool alive(const struct peer *peer)
{
    static const char request[] = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (int i = 0; i < 500; i++) {
        if (ask(peer, request, strlen(request)) > 0)
            return strstr(answer, " 200 ") != NULL;
        poll(NULL, 0, 10);
    }
    return false;
}

static void read_host(const char *p, size_t n)
{
    struct access_host h;
    struct error err = {0};
    if (access_host_parse((struct str){p, n}, &h)) {
        MUST(h.name[0] && strlen(h.name) < sizeof h.name && !strpbrk(h.name, " \r\n/@"));
        if (!h.is_address)
            MUST(access_hosts_check(h.name, &err) == 0);
    }
    if (access_hosts_check(p, &err) != 0)
        MUST(err.code == ERR_CONFIG && err.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static unsigned asked;
    struct admin_address a;
    struct error err = {0};
    char *text = fuzz_text(data, n);
    if (!peers[0].server)
        start_both();
    if (admin_address_parse(text, &a, &err) == 0)
        MUST(a.size > 0 && (admin_loopback(&a), true));
    else
        MUST(err.code == ERR_CONFIG && err.text[0]);
    read_host(text, n);
    for (int i = 0; i < 2; i++)
        judge(&peers[i], text, n, ask(&peers[i], data, n));
    if (++asked % 64 == 0)
        MUST(alive(&peers[0]) && alive(&peers[1]));
    free(text);
    return 0;
}
