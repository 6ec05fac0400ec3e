#include "engine/consumer.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"

#define DAY_MS (24 * INT64_C(3600000))

static const struct preset {
    const char *name;
    struct retry_policy p;
} presets[] = {
    {"fast",
     {.base_ms = 1000, .cap_ms = 300000, .attempts = 5, .jitter = true, .outage_ms = DAY_MS}},
    {"slow",
     {.base_ms = 60000, .cap_ms = 3600000, .attempts = 6, .jitter = false, .outage_ms = DAY_MS}},
    {"patient",
     {.base_ms = 1000, .cap_ms = 3600000, .attempts = 32, .jitter = true, .outage_ms = DAY_MS}},
};
#define PRESETS (sizeof presets / sizeof *presets)

static int set_part(const char *name, const char *value, struct retry_policy *p, struct error *err)
{
    static const char *const names[] = {"fast",     "slow",   "patient", "base", "cap",
                                        "attempts", "jitter", "outage",  NULL};
    int64_t n;
    for (size_t i = 0; !value && i < PRESETS; i++) {
        if (strcmp(name, presets[i].name) != 0)
            continue;
        *p = presets[i].p;
        return 0;
    }
    if (value && strcmp(name, "base") == 0)
        return text_duration(value, &p->base_ms, err);
    if (value && strcmp(name, "cap") == 0)
        return text_duration(value, &p->cap_ms, err);
    if (value && strcmp(name, "outage") == 0)
        return text_duration(value, &p->outage_ms, err);
    if (value && strcmp(name, "attempts") == 0) {
        p->bounded = true;
        p->attempts = RETRY_FOREVER;
        if (strcmp(value, "forever") == 0)
            return 0;
        if (text_int(value, 1, 1000, &n, err) != 0)
            return -1;
        p->attempts = (int)n;
        return 0;
    }
    if (value && strcmp(name, "jitter") == 0) {
        bool full = strcmp(value, "full") == 0;
        bool none = strcmp(value, "none") == 0;
        p->jitter = full;
        if (full || none)
            return 0;
    }
    char hint[TEXT_HINT];
    text_hint(name, names, (struct text_hint){0}, hint);
    return err_set(
        err, ERR_CONFIG,
        "\"%s\" is not patient, fast, slow, base=, cap=, attempts=, jitter=full|none or outage=%s",
        name, hint);
}

int retry_parse(const char *s, struct retry_policy *ret, struct error *err)
{
    struct retry_policy p = presets[0].p;
    char text[RETRY_TEXT * 2], *save = NULL;
    if (strlen(s) >= sizeof text)
        return err_set(err, ERR_CONFIG, "retry policy is too long");
    snprintf(text, sizeof text, "%s", s);
    char *part = strtok_r(text, ", ", &save);
    if (!part)
        return err_set(
            err, ERR_CONFIG,
            "retry policy is empty: write patient, fast, slow, or base=1s,cap=5m,attempts=5");
    for (; part; part = strtok_r(NULL, ", ", &save)) {
        char *value = strchr(part, '=');
        if (value)
            *value++ = '\0';
        if (set_part(part, value, &p, err) != 0) {
            if (value)
                err_prefix(err, "%s", part);
            if (err)
                err->code = ERR_CONFIG;
            return -1;
        }
    }
    p.cap_ms = max_i64(p.cap_ms, p.base_ms);
    p.usual = p.attempts;
    *ret = p;
    return 0;
}

void retry_hold(struct retry_policy *p, bool hold)
{
    p->attempts = p->usual;
    if (hold && !p->bounded)
        p->attempts = RETRY_FOREVER;
}

static bool same_policy(const struct retry_policy *p, const struct retry_policy *q)
{
    return p->base_ms == q->base_ms && p->cap_ms == q->cap_ms && p->attempts == q->attempts &&
           p->jitter == q->jitter && p->outage_ms == q->outage_ms;
}

void retry_show(const struct retry_policy *p, char out[RETRY_TEXT])
{
    char base[32], cap[32], outage[32], attempts[16] = "forever";
    for (size_t i = 0; i < PRESETS; i++) {
        if (!same_policy(p, &presets[i].p))
            continue;
        snprintf(out, RETRY_TEXT, "%s", presets[i].name);
        return;
    }
    text_duration_show(p->base_ms, base);
    text_duration_show(p->cap_ms, cap);
    text_duration_show(p->outage_ms, outage);
    if (p->attempts != RETRY_FOREVER)
        snprintf(attempts, sizeof attempts, "%d", p->attempts);
    snprintf(out, RETRY_TEXT, "base=%s,cap=%s,attempts=%s,jitter=%s,outage=%s", base, cap, attempts,
             p->jitter ? "full" : "none", outage);
}

static int64_t longest_delay(const struct retry_policy *p, int attempts)
{
    int64_t delay = p->base_ms;
    for (int i = 1; i < attempts && delay < p->cap_ms; i++)
        delay *= 2;
    return min_i64(delay, p->cap_ms);
}

int64_t retry_delay(const struct retry_policy *p, int attempts, struct rng *r)
{
    int64_t delay = longest_delay(p, attempts);
    return p->jitter ? (int64_t)rng_below(r, (uint64_t)delay + 1) : delay;
}

/* Waits as long as the event has been failing, which amounts to doubling: the next wait is as long
 * as all waits so far. */
int64_t retry_delay_in_doubt(const struct retry_policy *p, int64_t failing_ms, struct rng *r)
{
    int64_t delay = min_i64(max_i64(failing_ms, p->base_ms), p->cap_ms);
    if (!p->jitter)
        return delay;
    return delay / 2 + (int64_t)rng_below(r, (uint64_t)delay / 2 + 1);
}

int64_t retry_horizon(const struct retry_policy *p)
{
    int64_t sum = 0;
    if (p->attempts == RETRY_FOREVER)
        return 0;
    for (int i = 1; i < p->attempts; i++)
        sum += longest_delay(p, i);
    return sum;
}
