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

#define PREFIX "whsec_"
#define SECRET_MIN 24
#define SECRET_MAX 64
#define SECRET_NEW 32
#define FILE_MAX 16384
#define MAC_SIZE 32

/* (1) mac[0..n) hold a key each; nothing else of the secrets stays in memory. */
struct signature_keys {
    EVP_MAC_CTX *mac[SIGNATURE_KEYS_MAX];
    size_t n;
};

void signature_keys_free(struct signature_keys *keys)
{
    if (!keys) return;
    for (size_t i = 0; i < keys->n; i++) EVP_MAC_CTX_free(keys->mac[i]);
    free(keys);
}

static EVP_MAC_CTX *new_mac(const struct buf *secret)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *kind = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = kind ? EVP_MAC_CTX_new(kind) : NULL;
    EVP_MAC_free(kind);
    if (ctx && EVP_MAC_init(ctx, (const unsigned char *)secret->p, secret->n, params) == 1) return ctx;
    EVP_MAC_CTX_free(ctx);
    return NULL;
}

/* add_key takes one word; its errors name the number of the secret and nothing of what it says. */
static int add_key(struct signature_keys *keys, struct str word, struct error *err)
{
    char bytes[SECRET_MAX + 4];
    struct buf secret = {.p = bytes, .cap = sizeof bytes, .max = sizeof bytes};
    size_t skip = sizeof(PREFIX) - 1;
    if (keys->n == SIGNATURE_KEYS_MAX) return err_set(err, ERR_CONFIG, "more than %d secrets", SIGNATURE_KEYS_MAX);
    if (word.n <= skip || memcmp(word.p, PREFIX, skip) != 0)
        return err_set(err, ERR_CONFIG, "secret %zu does not start with " PREFIX "; outbox webhook secret makes one",
                       keys->n + 1);
    bool good = base64_decode(&secret, (struct str){word.p + skip, word.n - skip}) && !secret.failed;
    if (good && secret.n >= SECRET_MIN && secret.n <= SECRET_MAX) keys->mac[keys->n] = new_mac(&secret);
    size_t n = secret.n;
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (!good || n < SECRET_MIN || n > SECRET_MAX)
        return err_set(err, ERR_CONFIG, "secret %zu is not " PREFIX " and base64 of %d to %d bytes", keys->n + 1,
                       SECRET_MIN, SECRET_MAX);
    if (!keys->mac[keys->n]) return err_set(err, ERR_UNAVAILABLE, "libcrypto has no HMAC-SHA256");
    keys->n++;
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
        while (p < end && !memchr(blanks, *p, sizeof blanks - 1)) p++;
        if (p > from && add_key(keys, (struct str){from, (size_t)(p - from)}, err) != 0) return -1;
        if (p < end) p++;
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
        if (k > 0) n += (size_t)k;
    }
    int e = errno, r = 0;
    if (fd >= 0) close(fd);
    if (k < 0) r = err_errno(err, ERR_CONFIG, e, "%s: could not read the secrets", path);
    else if (n == sizeof text) r = err_set(err, ERR_CONFIG, "%s: over 16 KiB", path);
    else if (add_words(keys, (struct str){text, n}, err) != 0) r = err_prefix(err, "%s", path);
    OPENSSL_cleanse(text, sizeof text);
    return r;
}

static int add_variable(struct signature_keys *keys, const char *name, struct error *err)
{
    const char *value = getenv(name);
    if (!value || !*value) return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    return add_words(keys, str_of(value), err) == 0 ? 0 : err_prefix(err, "%s", name);
}

int signature_keys_load(const char *file, const char *variable, struct signature_keys **ret, struct error *err)
{
    struct signature_keys *keys = calloc(1, sizeof *keys);
    if (!keys) return err_nomem(err);
    int r = file ? add_file(keys, file, err) : 0;
    if (r == 0 && variable) r = add_variable(keys, variable, err);
    if (r == 0 && keys->n == 0) r = err_set(err, ERR_CONFIG, "%s: no secret in it", file ? file : variable);
    if (r == 0) *ret = keys;
    else signature_keys_free(keys);
    return r;
}

static bool update(EVP_MAC_CTX *ctx, struct str s)
{
    return s.n == 0 || EVP_MAC_update(ctx, (const unsigned char *)s.p, s.n) == 1;
}

/* mac_of signs; a context is used again and again, keeping its key. */
static bool mac_of(EVP_MAC_CTX *ctx, const struct signature_message *m, unsigned char out[MAC_SIZE])
{
    char stamp[32];
    size_t n;
    int k = snprintf(stamp, sizeof stamp, ".%lld.", (long long)m->timestamp);
    return EVP_MAC_init(ctx, NULL, 0, NULL) == 1 && update(ctx, m->id) && update(ctx, (struct str){stamp, (size_t)k}) &&
           update(ctx, m->body) && EVP_MAC_final(ctx, out, &n, MAC_SIZE) == 1 && n == MAC_SIZE;
}

void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m)
{
    unsigned char mac[MAC_SIZE];
    for (size_t i = 0; i < keys->n; i++) {
        if (!mac_of(keys->mac[i], m, mac)) b->failed = true;
        buf_adds(b, i ? " v1," : "v1,");
        base64_add(b, mac, sizeof mac);
    }
}

/* matches compares one signature with what every key makes of the message, in the same time whatever differs. */
static bool matches(struct signature_keys *keys, const struct signature_message *m, struct str one)
{
    unsigned char mac[MAC_SIZE];
    char bytes[MAC_SIZE + 4];
    struct buf given = {.p = bytes, .cap = sizeof bytes, .max = sizeof bytes};
    if (one.n < 4 || memcmp(one.p, "v1,", 3) != 0) return false;
    if (!base64_decode(&given, (struct str){one.p + 3, one.n - 3}) || given.failed || given.n != MAC_SIZE) return false;
    for (size_t i = 0; i < keys->n; i++)
        if (mac_of(keys->mac[i], m, mac) && CRYPTO_memcmp(mac, bytes, MAC_SIZE) == 0) return true;
    return false;
}

const char *signature_check(struct signature_keys *keys, const struct signature_message *m, struct str header,
                            int64_t now_s)
{
    const char *p = header.p, *end = header.p + header.n;
    if (!m->id.n) return "no webhook-id";
    if (!header.n) return "no webhook-signature";
    if (now_s && m->timestamp < now_s - SIGNATURE_TOLERANCE_S)
        return "too old: webhook-timestamp is over 5 minutes ago";
    if (now_s && m->timestamp > now_s + SIGNATURE_TOLERANCE_S) return "webhook-timestamp is over 5 minutes ahead";
    while (p < end) {
        const char *blank = memchr(p, ' ', (size_t)(end - p));
        const char *stop = blank ? blank : end;
        if (matches(keys, m, (struct str){p, (size_t)(stop - p)})) return NULL;
        p = blank ? blank + 1 : end;
    }
    return "no signature of it was made with a secret of ours";
}

int signature_new_secret(struct buf *b, struct error *err)
{
    unsigned char bytes[SECRET_NEW];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_errno(err, ERR_UNAVAILABLE, errno, "no randomness from the kernel");
    buf_adds(b, PREFIX);
    base64_add(b, bytes, sizeof bytes);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return b->failed ? err_nomem(err) : 0;
}
