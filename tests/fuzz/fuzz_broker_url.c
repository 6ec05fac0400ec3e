/* URLs of brokers. They are read, or refused with a reason; a password in its usual places is
 * always refused, and never repeated. */
#include "base/url.h"
#include "fuzz.h"

#define SECRET "hunter2hunter2"

static bool reads(const char *text)
{
    struct url u;
    struct error err = {0};
    bool good = url_parse(text, "9092", "OUTBOX_FUZZ", NULL, NULL, &u, &err) == 0;
    if (good) {
        MUST(u.n_hosts > 0 && u.n_hosts <= URL_HOSTS_MAX && u.scheme && u.path);
        for (size_t i = 0; i < u.n_hosts; i++)
            MUST(u.hosts[i].host[0] && atoi(u.hosts[i].port) > 0 && atoi(u.hosts[i].port) < 65536);
        MUST(u.label[0] && !strpbrk(u.label, "\r\n"));
    } else {
        MUST(err.code == ERR_CONFIG && err.text[0] && !strchr(err.text, '\n'));
        MUST(!strstr(err.text, SECRET));
    }
    url_release(&u);
    return good;
}

static void refused(const char *before, const char *after)
{
    char url[8192];
    snprintf(url, sizeof url, "%s" SECRET "%.4000s", before, after);
    MUST(!reads(url));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_text(data, n), after[4096];
    if (!strstr(text, SECRET)) {
        reads(text);
        snprintf(after, sizeof after, "@%.2000s", text);
        if (!strpbrk(text, "/?"))
            refused("kafka://user:", after);
        snprintf(after, sizeof after, "&%.2000s", text);
        refused("kafka://host/topic?password=", after);
    }
    free(text);
    return 0;
}
