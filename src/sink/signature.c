#include "sink/signature.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/base64.h"

#define SECRET_MIN 24
#define SECRET_MAX 64
#define SECRET_NEW 32
#define ED25519_KEY 32
#define ED25519_SIGNATURE 64
#define FILE_MAX 16384
#define MAC_SIZE 32
#define MESSAGE_MAX (SIZE_MAX / 2)

enum key_kind { KEY_SECRET, KEY_PRIVATE, KEY_PUBLIC };

static const struct {
    const char *prefix, *what;
} kinds[] = {
    [KEY_SECRET] = {"whsec_", "base64 of 24 to 64 bytes"},
    [KEY_PRIVATE] = {"whsk_", "base64 of an ed25519 key, alone or with the public one behind it"},
    [KEY_PUBLIC] = {"whpk_", "base64 of an ed25519 key"},
};

/* (1) mac belongs to a secret, pair to the other kinds; nothing else of a key stays in memory. */
struct key {
    enum key_kind kind;
    EVP_MAC_CTX *mac;
    EVP_PKEY *pair;
};

struct signature_keys {
    enum signature_use use;
    struct key key[SIGNATURE_KEYS_MAX];
    size_t n;
};

/* ---- keys ---- */

void signature_keys_free(struct signature_keys *keys)
{
    if (!keys)
        return;
    for (size_t i = 0; i < keys->n; i++) {
        EVP_MAC_CTX_free(keys->key[i].mac);
        EVP_PKEY_free(keys->key[i].pair);
    }
    free(keys);
}

static EVP_MAC_CTX *new_mac(const unsigned char *secret, size_t n)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *kind = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = kind ? EVP_MAC_CTX_new(kind) : NULL;
    EVP_MAC_free(kind);
    if (ctx && EVP_MAC_init(ctx, secret, n, params) == 1)
        return ctx;
    EVP_MAC_CTX_free(ctx);
    return NULL;
}

static bool public_half(const EVP_PKEY *pair, unsigned char out[ED25519_KEY])
{
    size_t n = ED25519_KEY;
    return EVP_PKEY_get_raw_public_key(pair, out, &n) == 1 && n == ED25519_KEY;
}

/* new_private: where the public key stands behind it, it has to be the one that belongs to it. */
static EVP_PKEY *new_private(const unsigned char *bytes, size_t n)
{
    unsigned char public[ED25519_KEY];
    EVP_PKEY *pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, bytes, ED25519_KEY);
    bool belongs = pair && public_half(pair, public) &&
                   (n == ED25519_KEY || memcmp(public, bytes + ED25519_KEY, ED25519_KEY) == 0);
    if (belongs)
        return pair;
    EVP_PKEY_free(pair);
    return NULL;
}

/* make_key makes one of its bytes; false: they are no such key. */
static bool make_key(struct key *k, const unsigned char *bytes, size_t n)
{
    switch (k->kind) {
    case KEY_SECRET:
        if (n >= SECRET_MIN && n <= SECRET_MAX)
            k->mac = new_mac(bytes, n);
        break;
    case KEY_PRIVATE:
        if (n == ED25519_KEY || n == 2 * ED25519_KEY)
            k->pair = new_private(bytes, n);
        break;
    case KEY_PUBLIC:
        if (n == ED25519_KEY)
            k->pair = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, bytes, n);
        break;
    }
    return k->mac || k->pair;
}

static bool kind_of(struct str word, enum key_kind *ret)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = strlen(kinds[i].prefix);
        if (word.n <= n || memcmp(word.p, kinds[i].prefix, n) != 0)
            continue;
        *ret = (enum key_kind)i;
        return true;
    }
    return false;
}

/* add_key takes one word; its errors name the number of the secret and nothing of what it says. */
static int add_key(struct signature_keys *keys, struct str word, struct error *err)
{
    char bytes[SECRET_MAX + 4];
    struct buf decoded = {.p = bytes, .cap = sizeof bytes, .max = sizeof bytes};
    struct key k = {.mac = NULL};
    size_t number = keys->n + 1;
    if (keys->n == SIGNATURE_KEYS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d secrets", SIGNATURE_KEYS_MAX);
    if (!kind_of(word, &k.kind))
        return err_set(
            err, ERR_CONFIG,
            "secret %zu does not start with whsec_ or whsk_; outbox webhook secret makes one",
            number);
    if (k.kind == KEY_PUBLIC && keys->use == SIGNATURE_SIGN)
        return err_set(
            err, ERR_CONFIG,
            "secret %zu is a public key, which cannot sign; the private one begins with whsk_",
            number);

    size_t skip = strlen(kinds[k.kind].prefix);
    bool good = base64_decode(&decoded, (struct str){word.p + skip, word.n - skip}) &&
                !decoded.failed;
    if (good)
        good = make_key(&k, (const unsigned char *)bytes, decoded.n);
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (!good)
        return err_set(err, ERR_CONFIG, "secret %zu is not %s and %s", number, kinds[k.kind].prefix,
                       kinds[k.kind].what);
    keys->key[keys->n++] = k;
    return 0;
}

static int add_words(struct signature_keys *keys, struct str text, struct error *err)
{
    static const char blanks[] = " \t\r\n";
    const char *p = text.p, *end = text.p + text.n;
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p)), *from = p;
        if (*p == '#') {
            p = eol ? eol + 1 : end;
            continue;
        }
        while (p < end && !memchr(blanks, *p, sizeof blanks - 1))
            p++;
        if (p > from && add_key(keys, (struct str){from, (size_t)(p - from)}, err) != 0)
            return -1;
        if (p < end)
            p++;
    }
    return 0;
}

static int add_file(struct signature_keys *keys, const char *path, struct error *err)
{
    char text[FILE_MAX];
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t k = fd < 0 ? -1 : 1;
    while (k > 0 && n < sizeof text) {
        k = read(fd, text + n, sizeof text - n);
        if (k > 0)
            n += (size_t)k;
    }
    int e = errno, r = 0;
    if (fd >= 0)
        close(fd);
    if (k < 0)
        r = err_errno(err, ERR_CONFIG, e, "%s: could not read the secrets", path);
    else if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "%s: over 16 KiB", path);
    else if (add_words(keys, (struct str){text, n}, err) != 0)
        r = err_prefix(err, "%s", path);
    OPENSSL_cleanse(text, sizeof text);
    return r;
}

static int add_variable(struct signature_keys *keys, const char *name, struct error *err)
{
    const char *value = getenv(name);
    if (!value || !*value)
        return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    return add_words(keys, str_of(value), err) == 0 ? 0 : err_prefix(err, "%s", name);
}

int signature_keys_load(const struct signature_source *from, struct signature_keys **ret,
                        struct error *err)
{
    struct signature_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return err_nomem(err);
    keys->use = from->use;
    int r = 0;
    if (from->file)
        r = add_file(keys, from->file, err);
    if (r == 0 && from->variable)
        r = add_variable(keys, from->variable, err);
    if (r == 0 && keys->n == 0)
        r = err_set(err, ERR_CONFIG, "%s: no secret in it",
                    from->file ? from->file : from->variable);
    if (r == 0)
        *ret = keys;
    else
        signature_keys_free(keys);
    return r;
}

/* ---- signing ---- */

static bool update(EVP_MAC_CTX *ctx, struct str s)
{
    return s.n == 0 || EVP_MAC_update(ctx, (const unsigned char *)s.p, s.n) == 1;
}

#define STAMP 32

static struct str stamp_of(const struct signature_message *m, char out[STAMP])
{
    int n = snprintf(out, STAMP, ".%lld.", (long long)m->timestamp);
    return (struct str){out, (size_t)n};
}

/* mac_of signs; a context is used again and again, keeping its key. */
static bool mac_of(EVP_MAC_CTX *ctx, const struct signature_message *m, unsigned char out[MAC_SIZE])
{
    char stamp[STAMP];
    size_t n;
    return EVP_MAC_init(ctx, NULL, 0, NULL) == 1 && update(ctx, m->id) &&
           update(ctx, stamp_of(m, stamp)) && update(ctx, m->body) &&
           EVP_MAC_final(ctx, out, &n, MAC_SIZE) == 1 && n == MAC_SIZE;
}

/* whole puts what is signed into one piece, once: ed25519 goes over it twice, and so takes no
 * pieces. p == NULL: out of memory. */
static struct str whole(struct buf *b, const struct signature_message *m)
{
    char stamp[STAMP];
    if (b->n == 0) {
        buf_expect(b, m->id.n + STAMP + m->body.n);
        buf_addstr(b, m->id);
        buf_addstr(b, stamp_of(m, stamp));
        buf_addstr(b, m->body);
    }
    if (b->failed)
        return (struct str){NULL, 0};
    return (struct str){b->p, b->n};
}

static bool ed25519_sign(EVP_PKEY *pair, struct str message, unsigned char out[ED25519_SIGNATURE])
{
    size_t n = ED25519_SIGNATURE;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, pair) == 1 &&
                EVP_DigestSign(ctx, out, &n, (const unsigned char *)message.p, message.n) == 1;
    EVP_MD_CTX_free(ctx);
    return done && n == ED25519_SIGNATURE;
}

static bool ed25519_verify(EVP_PKEY *pair, struct str message,
                           const unsigned char signature[ED25519_SIGNATURE])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pair) == 1 &&
                EVP_DigestVerify(ctx, signature, ED25519_SIGNATURE,
                                 (const unsigned char *)message.p, message.n) == 1;
    EVP_MD_CTX_free(ctx);
    return good;
}

static void add_mac(struct buf *b, const struct key *k, const struct signature_message *m)
{
    unsigned char mac[MAC_SIZE];
    if (!mac_of(k->mac, m, mac)) {
        b->failed = true;
        return;
    }
    buf_adds(b, "v1,");
    base64_add(b, mac, sizeof mac);
}

static void add_ed25519(struct buf *b, const struct key *k, struct str message)
{
    unsigned char signature[ED25519_SIGNATURE];
    if (!message.p || !ed25519_sign(k->pair, message, signature)) {
        b->failed = true;
        return;
    }
    buf_adds(b, "v1a,");
    base64_add(b, signature, sizeof signature);
}

void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m)
{
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n; i++) {
        const struct key *k = &keys->key[i];
        if (i)
            buf_addc(b, ' ');
        if (k->kind == KEY_SECRET)
            add_mac(b, k, m);
        else
            add_ed25519(b, k, whole(&message, m));
    }
    buf_release(&message);
}

/* ---- verifying ---- */

/* A signature of a header. (1) kind is KEY_SECRET or KEY_PUBLIC. */
struct given {
    enum key_kind kind;
    char bytes[ED25519_SIGNATURE + 4];
};

/* read_given: false for one that no key of ours can have made. */
static bool read_given(struct str one, struct given *ret)
{
    struct buf decoded = {.p = ret->bytes, .cap = sizeof ret->bytes, .max = sizeof ret->bytes};
    const char *comma = memchr(one.p, ',', one.n);
    struct str version = {one.p, comma ? (size_t)(comma - one.p) : 0};
    if (str_is(version, "v1"))
        ret->kind = KEY_SECRET;
    else if (str_is(version, "v1a"))
        ret->kind = KEY_PUBLIC;
    else
        return false;
    struct str text = {comma + 1, one.n - version.n - 1};
    size_t size = ret->kind == KEY_SECRET ? MAC_SIZE : ED25519_SIGNATURE;
    return base64_decode(&decoded, text) && !decoded.failed && decoded.n == size;
}

/* next_given gives the next signature of a header that can be one; false: there is none. */
static bool next_given(struct str *header, struct given *ret)
{
    while (header->n > 0) {
        const char *blank = memchr(header->p, ' ', header->n);
        struct str one = {header->p, blank ? (size_t)(blank - header->p) : header->n};
        size_t past = one.n + (blank ? 1 : 0);
        header->p += past;
        header->n -= past;
        if (read_given(one, ret))
            return true;
    }
    return false;
}

/* matches: a secret's are compared in the same time, whatever differs. */
static bool matches(const struct key *k, const struct given *g, const unsigned char mac[MAC_SIZE],
                    struct str message)
{
    bool secret = k->kind == KEY_SECRET;
    if (secret != (g->kind == KEY_SECRET))
        return false;
    if (secret)
        return CRYPTO_memcmp(mac, g->bytes, MAC_SIZE) == 0;
    return ed25519_verify(k->pair, message, (const unsigned char *)g->bytes);
}

/* made_by says whether one of the signatures is by this key. What a secret makes of the message is
 * worked out once. */
static bool made_by(const struct key *k, const struct signature_message *m, struct str header,
                    struct buf *message)
{
    unsigned char mac[MAC_SIZE] = {0};
    struct given g;
    struct str text = {"", 0};
    if (k->kind == KEY_SECRET) {
        if (!mac_of(k->mac, m, mac))
            return false;
    } else {
        text = whole(message, m);
        if (!text.p)
            return false;
    }
    for (int i = 0; i < SIGNATURES_MAX && next_given(&header, &g); i++)
        if (matches(k, &g, mac, text))
            return true;
    return false;
}

static bool made_by_any(const struct signature_keys *keys, const struct signature_message *m,
                        struct str header)
{
    bool found = false;
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n && !found; i++)
        found = made_by(&keys->key[i], m, header, &message);
    buf_release(&message);
    return found;
}

const char *signature_check(struct signature_keys *keys, const struct signature_message *m,
                            struct str header, int64_t now_s)
{
    if (!m->id.n)
        return "no webhook-id";
    /* x.1700000000.1700000001.5 would be the number 1700000001.5 under the id x, and as well 5
     * under the id x.1700000000. */
    if (memchr(m->id.p, '.', m->id.n))
        return "webhook-id has a dot in it";
    if (!header.n)
        return "no webhook-signature";
    if (now_s && m->timestamp < now_s - SIGNATURE_TOLERANCE_S)
        return "too old: webhook-timestamp is over 5 minutes ago";
    if (now_s && m->timestamp > now_s + SIGNATURE_TOLERANCE_S)
        return "webhook-timestamp is over 5 minutes ahead";
    if (made_by_any(keys, m, header))
        return NULL;
    return "no signature of it was made with a secret of ours";
}

bool signature_timestamp(struct str text, int64_t *ret)
{
    int64_t n = 0;
    if (text.n == 0 || text.n > 15 || text.p[0] == '0')
        return false;
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] < '0' || text.p[i] > '9')
            return false;
        n = n * 10 + (text.p[i] - '0');
    }
    *ret = n;
    return true;
}

/* ---- new keys ---- */

static int randomness(unsigned char *p, size_t n, struct error *err)
{
    if (getrandom(p, n, 0) == (ssize_t)n)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "no randomness from the kernel");
}

static void write_key(struct buf *b, enum key_kind kind, const unsigned char *p, size_t n)
{
    buf_adds(b, kinds[kind].prefix);
    base64_add(b, p, n);
}

int signature_new_secret(struct buf *b, struct error *err)
{
    unsigned char bytes[SECRET_NEW];
    if (randomness(bytes, sizeof bytes, err) != 0)
        return -1;
    write_key(b, KEY_SECRET, bytes, sizeof bytes);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return b->failed ? err_nomem(err) : 0;
}

int signature_new_pair(struct buf *b, struct buf *public, struct error *err)
{
    unsigned char bytes[2 * ED25519_KEY];
    if (randomness(bytes, ED25519_KEY, err) != 0)
        return -1;
    EVP_PKEY *pair = new_private(bytes, ED25519_KEY);
    bool good = pair && public_half(pair, bytes + ED25519_KEY);
    EVP_PKEY_free(pair);
    if (good) {
        write_key(b, KEY_PRIVATE, bytes, sizeof bytes);
        write_key(public, KEY_PUBLIC, bytes + ED25519_KEY, ED25519_KEY);
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (!good)
        return err_set(err, ERR_UNAVAILABLE, "libcrypto has no ed25519");
    return b->failed || public->failed ? err_nomem(err) : 0;
}

int signature_public(struct buf *b, const struct signature_keys *keys, struct error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < keys->n; i++) {
        unsigned char bytes[ED25519_KEY];
        if (keys->key[i].kind == KEY_SECRET || !public_half(keys->key[i].pair, bytes))
            continue;
        write_key(b, KEY_PUBLIC, bytes, sizeof bytes);
        buf_addc(b, '\n');
        n++;
    }
    if (n == 0)
        return err_set(err, ERR_CONFIG,
                       "there is no whsk_ key; outbox webhook secret --asymmetric makes one");
    return b->failed ? err_nomem(err) : 0;
}
