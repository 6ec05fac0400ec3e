/* signature_impl.h: what signature.c (signing and verifying) and signature_keys.c (reading and
 * making keys) share. Nobody else includes it. */
#ifndef SINK_SIGNATURE_IMPL_H
#define SINK_SIGNATURE_IMPL_H

#include <openssl/evp.h>

#include "sink/signature.h"

/* A secret shared by both sides, or one half of a pair. */
enum key_kind { KEY_SECRET, KEY_PRIVATE, KEY_PUBLIC };

/* (1) A secret has mac, the other kinds have pair; nothing else of a key stays in memory. */
struct key {
    enum key_kind kind;
    EVP_MAC_CTX *mac;
    EVP_PKEY *pair;
};

/* The keys, in the order they were given. */
struct signature_keys {
    enum signature_use use;
    struct key key[SIGNATURE_KEYS_MAX];
    size_t n;
};

#endif
