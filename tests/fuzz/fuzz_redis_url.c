/* URLs of Redis, as for sinks and members of groups. They are parsed, or refused with a reason; a
 * password in its usual places is always refused, and never repeated. */
#include "fuzz.h"
#include "sink/redis_impl.h"

#define SECRET "hunter2hunter2"

static bool reads(const char *text)
{
    struct redis_settings s;
    struct error err = {0};
    bool good = redis_settings_read(text, &s, &err) == 0;
    if (good) {
        struct template *t = NULL;
        const struct redis_url u = s.url;
        MUST(u.path ? u.path[0] == '/'
                    : u.host && u.host[0] && u.port && atoi(u.port) > 0 && atoi(u.port) < 65536);
        MUST(u.label[0] && !strpbrk(u.label, "\r\n") && u.db >= 0 && s.stream);
        MUST(s.maxlen >= 0 && s.maxage_ms >= 0 && s.replicas >= 0 && s.lease_ms >= 1000 &&
             !(s.maxlen && s.maxage_ms));
        if (template_new(s.stream, &t, &err) != 0)
            MUST(err.code == ERR_CONFIG && err.text[0]);
        template_free(t);
    } else {
        MUST(err.code == ERR_CONFIG && err.text[0] && !strchr(err.text, '\n'));
        MUST(!strstr(err.text, SECRET));
    }
    redis_settings_release(&s);
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
        snprintf(after, sizeof after, "@%.2000s?stream=s", text);
        if (!strpbrk(text, "/?"))
            refused("redis://user:", after);
        snprintf(after, sizeof after, "&%.2000s", text);
        refused("redis://host?stream=s&password=", after);
    }
    free(text);
    return 0;
}
