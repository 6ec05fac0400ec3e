/* token.c: reads and compares tokens. They are wiped from memory after use. */
#include "admin/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/char.h"
#include "base/small_file.h"
#include "base/text.h"

#define FILE_MAX 16384

/* (1) text is padded with NULs, which no token contains: two that are equal in every byte are equal
 * in length. */
struct token {
    unsigned char text[TOKEN_MAX];
};

/* All valid tokens. (1) The unused ones are all NULs, and are compared like the others. */
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

/* add adds one token. Its errors give the number of the token and quote nothing of it. */
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

/* add_line adds the tokens of a line, unless it is a comment. */
static int add_line(struct tokens *t, struct str line, struct error *err)
{
    const char *p = line.p, *end = line.p + line.n;
    if (line.n > 0 && *p == '#')
        return 0;

    while (p < end) {
        const char *from = p;
        while (p < end && !char_is_space(*p))
            p++;
        struct str word = {from, (size_t)(p - from)};
        if (word.n > 0 && add(t, word, err) != 0)
            return -1;
        if (p < end)
            p++;
    }
    return 0;
}

/* add_lines adds the tokens of a text line by line, since comments go to the end of a line. */
static int add_lines(struct tokens *t, struct str text, struct error *err)
{
    const char *p = text.p, *end = text.p + text.n;
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol)
            eol = end;
        if (add_line(t, (struct str){p, (size_t)(eol - p)}, err) != 0)
            return -1;
        p = eol + 1;
    }
    return 0;
}

/* slurp reads up to `size` bytes of a file and returns their number; -1, with errno, on failure. It
 * refuses a pipe, which could keep us waiting and would be empty the next time. */
static ssize_t slurp(const char *path, char *text, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!regular) {
        close(fd);
        errno = EINVAL;
        return -1;
    }

    ssize_t n = small_file_read_fd(fd, text, size);
    int e = errno;
    close(fd);
    errno = e;
    return n;
}

/* add_file adds the tokens of a file, and wipes the copy in memory. */
static int add_file(struct tokens *t, const char *path, struct error *err)
{
    char text[FILE_MAX];
    ssize_t n = slurp(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the token", path);

    size_t before = t->n;
    int r;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "larger than 16 KiB");
    else
        r = add_lines(t, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);

    if (r == 0 && t->n == before)
        r = err_set(err, ERR_CONFIG, "no token in it; openssl rand -hex 32 makes one");
    if (r != 0)
        return err_prefix(err, "%s", path);
    return 0;
}

static int add_variable(struct tokens *t, const char *name, struct error *err)
{
    const char *value = getenv(name);
    size_t before = t->n;
    if (!value || !*value)
        return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    if (add_lines(t, str_of(value), err) != 0)
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
    if (r != 0) {
        token_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

/* differ looks at every byte, whatever it has found before: its time says nothing about the
 * tokens. */
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
    bool possible = given.n >= TOKEN_MIN && given.n <= TOKEN_MAX;
    possible = possible && !memchr(given.p, '\0', given.n);
    if (possible)
        memcpy(g.text, given.p, given.n);
    /* The unused ones are compared as well, so that the time does not tell their number. */
    for (size_t i = 0; i < TOKENS_MAX; i++) {
        unsigned same = differ(&t->token[i], &g) == 0;
        matching |= same & (i < t->n);
    }
    explicit_bzero(&g, sizeof g);
    return possible && matching;
}

int token_variable(const char *name, struct error *err)
{
    if (text_is_variable(str_of(name)))
        return 0;
    return err_set(err, ERR_CONFIG,
                   "this must be the name of an environment variable, not a token");
}
