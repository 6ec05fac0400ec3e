/* Durations, sizes, numbers, yes and no: an accepted value is within its bounds and is printed in a
 * form that parses back to it. */
#include "base/text.h"
#include "engine/consumer.h"
#include "fuzz.h"

#define CENTURY_MS (100LL * 366 * 24 * 3600 * 1000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"order", "lanes", "retry", "lease", NULL};
    char *text = fuzz_text(data, n), shown[32];
    struct error err = {0};
    struct consumer c;
    int64_t v, back;
    bool yes;
    if (text_duration(text, &v, &err) == 0) {
        MUST(v >= 0 && v <= CENTURY_MS);
        text_duration_show(v, shown);
        MUST(text_duration(shown, &back, &err) == 0 && back == v);
    } else
        MUST(err.text[0]);
    if (text_size(text, &v, &err) == 0) {
        MUST(v >= 0);
        text_size_show(v, shown);
        MUST(text_size(shown, &back, &err) == 0 && back == v);
    }
    if (text_int(text, -5, 1000, &v, &err) == 0)
        MUST(v >= -5 && v <= 1000);
    text_bool(text, &yes, &err);
    text_nearest(text, names);
    if (consumer_init(&c, "c", &err) != 0)
        abort();
    for (const struct option_def *o = consumer_options; o->name; o++)
        if (option_apply(o, &c, text, &err) != 0)
            MUST(err.text[0]);
    consumer_release(&c);
    free(text);
    return 0;
}
