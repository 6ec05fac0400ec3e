/* fuzz.h: shared by the targets. A target is a file fuzz_NAME.c with this one function; its corpus
 * is corpus/NAME. It runs under libFuzzer (meson setup -Dfuzz=true with clang), or over its corpus
 * alone (replay.c). */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* MUST ends the process if a promise does not hold. The sanitizers report their own findings. */
#define MUST(promise) \
    do { \
        if (!(promise)) { \
            fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #promise); \
            abort(); \
        } \
    } while (0)

/* fuzz_text returns the input as a string, up to its first NUL; the caller frees it. */
static inline char *fuzz_text(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    if (!text)
        abort();
    if (n)
        memcpy(text, data, n);
    text[n] = '\0';
    return text;
}

#endif
