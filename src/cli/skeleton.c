/* skeleton.c: `migrate gen --out-dir`: the SQL, and what a service starts with, as files. */
#include "cli/skeleton.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MODE 0644
#define DIR_MODE 0755

/* ---- the program ---- */

/* In the order of the text: service, store, service, service. */
static const char program_head[] =
    "/* boot.c: the outbox of the service %s. It makes the tables where there are none, and delivers until SIGTERM or\n"
    " * SIGINT. Change it as you like.\n"
    " *\n"
    " *     make\n"
    " *     ./boot              # delivers\n"
    " *     ./boot emit TYPE    # hands in an event, as your own transactions will\n"
    " *\n"
    " * OUTBOX_STORE and OUTBOX_SINK stand for what is written here. */\n"
    "#include <signal.h>\n"
    "#include <stdio.h>\n"
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "\n"
    "#include <outbox.h>\n"
    "\n";

static const char program_body[] =
    "static outbox *ob; /* signal handlers need it */\n"
    "\n"
    "static void on_stop(int number)\n"
    "{\n"
    "    (void)number;\n"
    "    outbox_stop(ob);\n"
    "}\n"
    "\n"
    "static int failed(const char *what, const outbox_error *err)\n"
    "{\n"
    "    fprintf(stderr, \"boot: %s: %s\\n\", what, err->text);\n"
    "    return EXIT_FAILURE;\n"
    "}\n"
    "\n"
    "static void on_log(void *ctx, int level, const char *consumer, const char *text)\n"
    "{\n"
    "    (void)ctx;\n"
    "    (void)level;\n"
    "    fprintf(stderr, \"boot: %s%s%s\\n\", consumer ? consumer : \"\", consumer ? \": \" : \"\", text);\n"
    "}\n"
    "\n"
    "/* emit: in a transaction of your own it is outbox_emit_pg or outbox_emit_sqlite, with your connection. */\n"
    "static int emit(const char *type)\n"
    "{\n"
    "    outbox_message m = OUTBOX_MESSAGE_INIT;\n"
    "    outbox_error err;\n"
    "    m.type = type;\n"
    "    m.payload = \"{}\";\n"
    "    if (outbox_emit(ob, &m, NULL, &err) != 0) return failed(\"emit\", &err);\n"
    "    return EXIT_SUCCESS;\n"
    "}\n"
    "\n"
    "static int deliver(void)\n"
    "{\n"
    "    const char *sink = getenv(\"OUTBOX_SINK\");\n"
    "    outbox_consumer *c;\n"
    "    outbox_error err;\n"
    "    if (outbox_consumer_new(ob, SERVICE, &c, &err) != 0) return failed(SERVICE, &err);\n"
    "    if (outbox_consumer_set(c, \"preset\", \"dispatcher\", &err) != 0) return failed(SERVICE, &err);\n"
    "    if (outbox_consumer_set(c, \"sink\", sink ? sink : SINK, &err) != 0) return failed(SERVICE, &err);\n"
    "    signal(SIGTERM, on_stop);\n"
    "    signal(SIGINT, on_stop);\n"
    "    signal(SIGPIPE, SIG_IGN);\n"
    "    if (outbox_run(ob, 0, &err) != 0) return failed(\"deliver\", &err);\n"
    "    return EXIT_SUCCESS;\n"
    "}\n"
    "\n"
    "int main(int argc, char **argv)\n"
    "{\n"
    "    const char *store = getenv(\"OUTBOX_STORE\");\n"
    "    outbox_options options = OUTBOX_OPTIONS_INIT;\n"
    "    outbox_error err;\n"
    "    int status;\n"
    "    options.create = 1;\n"
    "    options.log = on_log;\n"
    "    if (outbox_open(store ? store : STORE, &options, &ob, &err) != 0) return failed(\"open\", &err);\n"
    "    if (argc == 3 && strcmp(argv[1], \"emit\") == 0) status = emit(argv[2]);\n"
    "    else status = deliver();\n"
    "    outbox_close(ob);\n"
    "    return status;\n"
    "}\n";

static const char makefile[] =
    "override CFLAGS += -std=c17 -Wall -Wextra $(shell pkg-config --cflags outbox)\n"
    "override LDLIBS += $(shell pkg-config --libs outbox)\n"
    "\n"
    "boot: boot.c\n"
    "\n"
    "clean:\n"
    "\trm -f boot\n"
    "\n"
    ".PHONY: clean\n";

/* add_literal appends a string of C. What is no plain character is written in octal, three digits of it; a second question mark
 * might make a trigraph. */
static void add_literal(struct buf *b, const char *text)
{
    buf_addc(b, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool trigraph = *p == '?' && p[1] == '?';
        bool special = *p == '"' || *p == '\\' || trigraph;
        if (special)
            buf_addc(b, '\\');
        if (*p < ' ' || *p > '~')
            buf_addf(b, "\\%03o", *p);
        else
            buf_addc(b, (char)*p);
    }
    buf_addc(b, '"');
}

void skeleton_program(struct buf *b, const char *service, const char *store)
{
    buf_addf(b, program_head, service);
    buf_adds(b, "#define SERVICE ");
    add_literal(b, service);
    buf_adds(b, "\n#define STORE ");
    add_literal(b, store);
    buf_adds(
        b,
        "\n#define SINK \"stdout:\" /* or \"redis://127.0.0.1:6379/0?stream={type}&lease=lock:outbox:");
    buf_adds(b, service);
    buf_adds(b, "\" */\n\n");
    buf_adds(b, program_body);
}

void skeleton_makefile(struct buf *b)
{
    buf_adds(b, makefile);
}

/* ---- files ---- */

/* make_folder makes the folder and those it is in. */
static int make_folder(const char *dir, struct error *err)
{
    char path[SKELETON_PATH];
    size_t n = strlen(dir);
    if (n == 0)
        return err_set(err, ERR_CONFIG, "--out-dir: the folder's name is empty");
    if (n >= sizeof(path))
        return err_set(err, ERR_CONFIG, "--out-dir: the folder's name is too long");
    memcpy(path, dir, n + 1);
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (mkdir(path, DIR_MODE) != 0 && errno != EEXIST)
            return err_errno(err, ERR_CONFIG, errno, "--out-dir: could not make %s", path);
        *p = '/';
    }
    if (mkdir(path, DIR_MODE) != 0 && errno != EEXIST)
        return err_errno(err, ERR_CONFIG, errno, "--out-dir: could not make %s", path);
    return 0;
}

static int path_of(const char *dir, const char *name, char out[SKELETON_PATH], struct error *err)
{
    int n = snprintf(out, SKELETON_PATH, "%s/%s", dir, name);
    if (n < SKELETON_PATH)
        return 0;
    return err_set(err, ERR_CONFIG, "--out-dir: the folder's name is too long");
}

/* look says what is at the place of a file. */
static int look(const char *path, struct skeleton_file *f, struct error *err)
{
    struct buf there;
    buf_init(&there, f->text.n + 1);
    int e = lines_slurp(path, f->text.n + 1, &there);
    bool same = e == 0 && there.n == f->text.n &&
                memcmp(there.p ? there.p : "", f->text.p, there.n) == 0;
    buf_release(&there);
    f->there = same;
    if (e == ENOENT || same)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "%s is there already, and is not what would be written; nothing was: move it away, or take another "
        "--out-dir",
        path);
}

/* write_new never replaces a file, nor follows a link: whatever came there meanwhile stays. */
static int write_new(const char *path, const struct buf *text, struct error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "could not make %s", path);
    size_t at = 0;
    while (at < text->n) {
        ssize_t n = write(fd, text->p + at, text->n - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int e = errno;
            close(fd);
            unlink(path);
            return err_errno(err, ERR_FULL, e, "could not write %s", path);
        }
        at += (size_t)n;
    }
    if (close(fd) == 0)
        return 0;
    return err_errno(err, ERR_FULL, errno, "could not write %s", path);
}

int skeleton_write(const char *dir, struct skeleton_file *files, size_t n, struct error *err)
{
    char path[SKELETON_PATH];
    for (size_t i = 0; i < n; i++)
        if (!buf_cstr(&files[i].text))
            return err_nomem(err);
    if (make_folder(dir, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (path_of(dir, files[i].name, path, err) != 0 || look(path, &files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++) {
        if (files[i].there)
            continue;
        if (path_of(dir, files[i].name, path, err) != 0)
            return -1;
        if (write_new(path, &files[i].text, err) != 0)
            return -1;
    }
    return 0;
}
