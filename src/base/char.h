/* char.h: control characters, and visible ones. */
#ifndef BASE_CHAR_H
#define BASE_CHAR_H

#include <stdbool.h>

/* char_is_control says whether c is one of C0, or DEL. */
static inline bool char_is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

/* char_is_c1 says whether the UTF-8 character at p is a C1 control character, which a terminal
 * takes for an escape sequence. Another byte, if only the NUL of a string, must follow p[0]. */
static inline bool char_is_c1(const char *p)
{
    return (unsigned char)p[0] == 0xc2 && (unsigned char)p[1] < 0xa0;
}

/* char_is_visible says whether c is ASCII, and neither a control character nor a blank. */
static inline bool char_is_visible(char c)
{
    return (unsigned char)c > ' ' && (unsigned char)c < 0x7f;
}

#endif
