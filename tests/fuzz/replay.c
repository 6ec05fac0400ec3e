/* replay.c: a fuzz target over the files of its corpus, as one TAP test: replay DIRECTORY. */
#include <dirent.h>
#include <limits.h>
#include <unistd.h>

#include "fuzz.h"

#define INPUT_MAX (1 << 20)

static void replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *data = malloc(INPUT_MAX);
    if (!f || !data)
        abort();
    size_t n = fread(data, 1, INPUT_MAX, f);
    fclose(f);
    /* A copy of exactly that size, so that AddressSanitizer sees a read beyond its end. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        abort();
    memcpy(exact, data, n);
    free(data);
    fprintf(stderr, "%s\n", path); /* after a crash, the last name is the culprit's */
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

int main(int argc, char **argv)
{
    int n = 0;
    struct dirent *entry;
    /* a target may use the standard output for itself */
    FILE *report = fdopen(dup(STDOUT_FILENO), "w");
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!report)
        abort();
    if (!dir) {
        fprintf(stderr, "usage: replay DIRECTORY\n");
        return 64;
    }
    while ((entry = readdir(dir))) {
        char path[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        replay(path);
        n++;
    }
    closedir(dir);
    fprintf(report, "%s 1 - holds for %d inputs\n1..1\n", n ? "ok" : "not ok", n);
    fclose(report);
    return n ? 0 : 1;
}
