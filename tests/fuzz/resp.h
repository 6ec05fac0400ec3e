/* resp.h: hiredis' own reader, for targets to compare with. It refuses lists that announce more
 * elements than our reader allows. */
#ifndef TESTS_FUZZ_RESP_H
#define TESTS_FUZZ_RESP_H

#include <hiredis/hiredis.h>

#include "fuzz.h"

static redisReplyObjectFunctions resp_objects, resp_theirs;

#if HIREDIS_MAJOR >= 1
static inline void *resp_array(const redisReadTask *task, size_t n)
#else
static inline void *resp_array(const redisReadTask *task, int n)
#endif
{
    return n > 1 << 20 ? NULL : resp_theirs.createArray(task, n);
}

static inline redisReader *resp_reader(void)
{
    redisReader *reader = redisReaderCreate();
    if (!reader)
        abort();
    resp_objects = resp_theirs = *reader->fn;
    resp_objects.createArray = resp_array;
    reader->fn = &resp_objects;
    return reader;
}

#endif
