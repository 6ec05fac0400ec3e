# The habits people have; meson and ninja do the work.
PREFIX ?= /usr/local
DESTDIR ?=

all:
	@scripts/build build

test:
	@./test

# The prefix is settled when installing; whoever built already need not build again as root.
install: all
	@meson configure build -Dprefix='$(abspath $(PREFIX))'
	@meson install -C build --quiet $(if $(DESTDIR),--destdir '$(abspath $(DESTDIR))')

bench: all
	@bench/run

format:
	@find include src tests bench examples -name '*.[ch]' -exec clang-format -i {} +

lint:
	@scripts/lint

clean:
	@rm -rf build build-asan build-tsan

.PHONY: all test install bench format lint clean
