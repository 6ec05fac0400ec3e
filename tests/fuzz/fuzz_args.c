/* The arguments of the command line, one per line. */
#include "cli/cli.h"
#include "fuzz.h"

#define WORDS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char name[] = "outbox";
    char *text = fuzz_text(data, n), *argv[WORDS_MAX + 1] = {name};
    struct cli cli = {0};
    struct error err = {0};
    int argc = 1;
    for (char *p = text; p && argc < WORDS_MAX;) {
        char *end = strchr(p, '\n');
        if (end)
            *end++ = '\0';
        argv[argc++] = p;
        p = end;
    }
    config_init(&cli.config);
    if (commands_parse(&cli, argc, argv, &err) != 0)
        MUST(err.code != ERR_NONE && err.code != ERR_INTERNAL && err.text[0]);
    else
        MUST(cli.cmd || cli.args.help);
    config_release(&cli.config);
    free(text);
    return 0;
}
