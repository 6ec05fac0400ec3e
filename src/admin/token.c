#include "admin/token.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/char.h"

#define FILE_MAX 16384

/* (1) text is filled up with NULs, which no token contains: equal to the last byte means equal in
 *   length, too. */
struct token {
    unsigned char text[TOKEN_MAX];
};

struct tokens {
    struct token token[TOKENS_MAX];
    size_t n;
};

void token_free(struct tokens *t)
{
    if (!t)
        return;
    explicit_bzero(t, sizeof *t);
    free(t);
}

static bool printable(struct str word)
{
    for (size_t i = 0; i < word.n; i++)
        if (!char_is_visible(word.p[i]))
            return false;
    return true;
}

/* add takes one word; its errors name the number of the token and nothing of what it says. */
static int add(struct tokens *t, struct str word, struct error *err)
{
    if (t->n == TOKENS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d tokens", TOKENS_MAX);
    if (!printable(word))
        return err_set(err, ERR_CONFIG, "token %zu is not printable ASCII", t->n + 1);
    if (word.n < TOKEN_MIN || word.n > TOKEN_MAX)
        return err_set(
            err, ERR_CONFIG,
            "token %zu is not %d to %d characters long; openssl rand -hex 32 makes a good one",
            t->n + 1, TOKEN_MIN, TOKEN_MAX);
    memcpy(t->token[t->n++].text, word.p, word.n);
    return 0;
}

static int add_words(struct tokens *t, struct str text, struct error *err)
{
    const char *p = text.p, *end = text.p + text.n;
    bool line_begins = true;
    while (p < end) {
        const char *from = p;
        if (line_begins && *p == '#') {
            const char *eol = memchr(p, '\n', (size_t)(end - p));
            p = eol ? eol : end;
            continue;
        }
        while (p < end && !strchr(" \t\r\n", *p))
            p++;
        if (p < end && !*p)
            return err_set(err, ERR_CONFIG, "there is a NUL in it");
        if (p > from && add(t, (struct str){from, (size_t)(p - from)}, err) != 0)
            return -1;
        line_begins = p < end && *p == '\n';
        if (p < end)
            p++;
    }
    return 0;
}

/* slurp gives how many bytes there are in the file, up to `size`; -1, with errno, if it cannot be
 * read. */
static ssize_t slurp(const char *path, char *text, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        errno = EINVAL; /* a pipe would keep us waiting, and is empty the next time */
        return -1;
    }
    size_t n = 0;
    ssize_t k = 1;
    while (k > 0 && n < size) {
        k = read(fd, text + n, size - n);
        if (k > 0)
            n += (size_t)k;
    }
    int e = errno;
    close(fd);
    errno = e;
    return k < 0 ? -1 : (ssize_t)n;
}

static int add_file(struct tokens *t, const char *path, struct error *err)
{
    char text[FILE_MAX];
    ssize_t n = slurp(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the token", path);
    size_t before = t->n;
    int r = 0;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "it is over 16 KiB");
    else
        r = add_words(t, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);
    if (r == 0 && t->n == before)
        r = err_set(err, ERR_CONFIG, "no token in it; openssl rand -hex 32 makes one");
    return r == 0 ? 0 : err_prefix(err, "%s", path);
}

static int add_variable(struct tokens *t, const char *name, struct error *err)
{
    const char *value = getenv(name);
    size_t before = t->n;
    if (!value || !*value)
        return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    if (add_words(t, str_of(value), err) != 0)
        return err_prefix(err, "%s", name);
    if (t->n == before)
        return err_set(err, ERR_CONFIG, "%s: no token in it", name);
    return 0;
}

int token_load(const char *file, const char *variable, struct tokens **ret, struct error *err)
{
    struct tokens *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(err);
    int r = 0;
    if (file)
        r = add_file(t, file, err);
    if (r == 0 && variable)
        r = add_variable(t, variable, err);
    if (r == 0)
        *ret = t;
    else
        token_free(t);
    return r;
}

/* differ ors together every difference, so that no byte is looked at sooner or later than
 * another. */
static unsigned differ(const struct token *a, const struct token *b)
{
    volatile unsigned found = 0;
    for (size_t i = 0; i < TOKEN_MAX; i++)
        found |= (unsigned)(a->text[i] ^ b->text[i]);
    return found;
}

bool token_matches(const struct tokens *t, struct str given)
{
    struct token g = {{0}};
    unsigned matching = 0;
    bool possible = given.n >= TOKEN_MIN && given.n <= TOKEN_MAX && !memchr(given.p, '\0', given.n);
    if (possible)
        memcpy(g.text, given.p, given.n);
    for (size_t i = 0; i < TOKENS_MAX; i++) {
        unsigned same = differ(&t->token[i], &g) == 0;
        matching |= same & (i < t->n);
    }
    explicit_bzero(&g, sizeof g);
    return possible && matching;
}

int token_variable(const char *name, struct error *err)
{
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || name[n] == '_')
        n++;
    bool good = n > 0 && !name[n] && !isdigit((unsigned char)name[0]);
    if (good)
        return 0;
    return err_set(err, ERR_CONFIG, "this wants the name of an environment variable, not a token");
}
