/* The parser of config files alone. Every name and value that it passes on is part of the
 * text. */
#include "base/text.h"
#include "cli/ini.h"
#include "fuzz.h"

static int visit(void *ctx, const char *section, const char *name, const char *value,
                 struct error *err)
{
    const size_t *most = ctx;
    (void)err;
    MUST(section);
    size_t given = strlen(section);
    if (name) { /* NULL: a section begins */
        MUST(*name && value);
        given += strlen(name) + strlen(value);
    }
    MUST(given <= *most);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct error err = {0};
    size_t most = 2 * n;
    struct ini_reading r = {.visit = visit, .ctx = &most};
    if (ini_read(&r, data ? (const char *)data : "", n, &err) != 0)
        MUST(err.code == ERR_CONFIG && r.line > 0);
    return 0;
}
