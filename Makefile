# The habits people have; meson and ninja do the work.
PREFIX ?= /usr/local
DESTDIR ?=

all:
	@scripts/build build

test:
	@./test

install: all
	@meson configure build -Dprefix='$(abspath $(PREFIX))'
	@scripts/build build
	@meson install -C build --no-rebuild --quiet $(if $(DESTDIR),--destdir '$(abspath $(DESTDIR))')

bench:
	@bench/run

format:
	@find include src extra tests bench examples -name '*.[ch]' -exec clang-format -i {} +

lint:
	@scripts/lint

clean:
	@rm -rf build build-asan build-tsan build-release

.PHONY: all test install bench format lint clean
