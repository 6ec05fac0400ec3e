/* Templates of stream names: refused with a reason, or good for every event that has the parts. */
#include "event/template.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_text(data, n);
    struct template *t;
    struct error err = {0};
    struct event ev = {
        .type = STR("order.paid"),
        .aggregate_type = STR("order"),
        .aggregate_id = STR("42"),
        .headers = STR("{\"a\":\"x\",\"b\":1,\"c\":\"\\u0000\",\"d\":\"\"}"),
    };
    struct buf b;
    if (template_new(text, &t, &err) != 0) {
        MUST(err.code == ERR_CONFIG && err.text[0]);
    } else {
        buf_init(&b, 1 << 20);
        if (template_write(t, &ev, NULL, &b, &err) == 0)
            MUST(b.n > 0);
        else
            MUST(err.text[0]);
        template_fixed(t);
        template_free(t);
        buf_release(&b);
    }
    free(text);
    return 0;
}
