/* URLs of stores and sinks. They are read without connecting, and no password is ever shown. */
#include "cli/cli.h"
#include "fuzz.h"
#include "sink/sink.h"
#include "store/store.h"

#define SECRET "hunter2hunter2"

static void read_url(const char *url)
{
    const struct store_ops *kind = store_kind(url);
    const struct sink_ops *ops;
    struct error err = {0};
    struct buf up, down, schema;
    buf_init(&up, 1 << 22);
    buf_init(&down, 1 << 20);
    buf_init(&schema, 1 << 12);
    struct ddl_request req = {.url = url, .up = &up, .down = &down, .ret_schema = &schema};
    if (kind && kind->ddl && kind->ddl(&req, &err) != 0)
        MUST(err.text[0] && err.code != ERR_INTERNAL);
    if (sink_find(url, &ops, &err) != 0)
        MUST(err.code == ERR_CONFIG);
    buf_release(&up);
    buf_release(&down);
    buf_release(&schema);
}

/* A password in its usual places is masked, whatever surrounds it. */
static void masked(const char *before, const char *after)
{
    struct buf b;
    char url[8192];
    snprintf(url, sizeof url, "%s" SECRET "%s", before, after);
    buf_init(&b, 1 << 16);
    config_mask(&b, url);
    MUST(buf_cstr(&b) && !strstr(b.p, SECRET));
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *url = fuzz_text(data, n), with[4096];
    if (strstr(url, SECRET))
        return free(url), 0;
    read_url(url);
    snprintf(with, sizeof with, "@%.2000s", url);
    masked("postgres://user:", with);
    snprintf(with, sizeof with, "&%.2000s", url);
    masked("postgres://host/db?password=", with);
    free(url);
    return 0;
}
