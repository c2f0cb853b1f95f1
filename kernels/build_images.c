/* SPDX-License-Identifier: Apache-2.0 */
/* build_images.c - a tool of the build: compiles CUDA sources for several architectures.
 *
 *   build_images OUT.c OUT.bin INCLUDE_DIR FILE.cu...
 *
 * NVRTC needs neither a GPU nor the rest of the toolkit, and it is what compiles candidates at run
 * time, so eager kernels and candidates come from the same compiler. Architectures that this NVRTC
 * does not know are left out. The images go into OUT.bin, which OUT.c pulls in as data.
 */
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct arch {
    const char *option;
    int arch, exact, ptx;
} archs[] = {
    {"-arch=sm_80", 80, 0, 0},   {"-arch=sm_89", 89, 0, 0},      {"-arch=sm_90a", 90, 1, 0},
    {"-arch=sm_100", 100, 0, 0}, {"-arch=compute_80", 80, 0, 1}, {"-arch=compute_90", 90, 0, 1},
};

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    long n = -1;
    if (f && fseek(f, 0, SEEK_END) == 0)
        n = ftell(f);
    char *text = n >= 0 ? calloc((size_t)n + 1, 1) : NULL;
    rewind(f ? f : stdin);
    if (!text || fread(text, 1, (size_t)n, f) != (size_t)n) {
        fprintf(stderr, "build_images: %s cannot be read\n", path);
        exit(1);
    }
    fclose(f);
    return text;
}

static void check(nvrtcResult r, const char *what)
{
    if (r != NVRTC_SUCCESS) {
        fprintf(stderr, "build_images: %s: %s\n", what, nvrtcGetErrorString(r));
        exit(1);
    }
}

static int known(int arch)
{
    int n = 0, *all, found = 0;
    check(nvrtcGetNumSupportedArchs(&n), "nvrtcGetNumSupportedArchs");
    all = calloc((size_t)n, sizeof *all);
    if (!all)
        exit(1);
    check(nvrtcGetSupportedArchs(all), "nvrtcGetSupportedArchs");
    for (int i = 0; i < n; i++)
        found |= all[i] == arch;
    free(all);
    return found;
}

static char *compile(const char *path, const char *include, const struct arch *a, size_t *size)
{
    char dir[4096], *text = read_text(path), *image;
    nvrtcProgram p;
    snprintf(dir, sizeof dir, "-I%s", include);
    const char *options[] = {a->option, "-std=c++17", "-default-device", dir};
    check(nvrtcCreateProgram(&p, text, path, 0, NULL, NULL), path);
    nvrtcResult r = nvrtcCompileProgram(p, 4, options);
    if (r != NVRTC_SUCCESS) {
        nvrtcGetProgramLogSize(p, size);
        char *log = calloc(*size + 1, 1);
        if (log && nvrtcGetProgramLog(p, log) == NVRTC_SUCCESS)
            fputs(log, stderr);
        check(r, path);
    }
    check(a->ptx ? nvrtcGetPTXSize(p, size) : nvrtcGetCUBINSize(p, size), path);
    image = calloc(*size + 1, 1);
    if (!image)
        exit(1);
    check(a->ptx ? nvrtcGetPTX(p, image) : nvrtcGetCUBIN(p, image), path);
    nvrtcDestroyProgram(&p);
    free(text);
    return image;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: build_images OUT.c OUT.bin INCLUDE_DIR FILE.cu...\n");
        return 2;
    }
    FILE *c = fopen(argv[1], "w"), *bin = fopen(argv[2], "wb");
    if (!c || !bin) {
        fprintf(stderr, "build_images: %s or %s cannot be written\n", argv[1], argv[2]);
        return 1;
    }
    size_t at = 0;
    int count = 0;
    fprintf(c, "#include \"kernels/images.h\"\n\nconst struct cuda_image cuda_images[] = {\n");
    for (int i = 4; i < argc; i++)
        for (size_t k = 0; k < sizeof archs / sizeof *archs; k++) {
            size_t size = 0, padded;
            if (!known(archs[k].arch))
                continue;
            char *image = compile(argv[i], argv[3], &archs[k], &size);
            const char *name = strrchr(argv[i], '/');
            padded = (size + 64) / 64 * 64; /* text ends with a zero */
            fprintf(c, "    {\"%s\", %d, %d, %d, %zu, %zu},\n", name ? name + 1 : argv[i],
                    archs[k].arch, archs[k].exact, archs[k].ptx, at, size);
            fwrite(image, 1, size, bin);
            for (size_t z = size; z < padded; z++)
                fputc(0, bin);
            at += padded;
            count++;
            free(image);
        }
    fprintf(c, "};\nconst int cuda_image_count = %d;\n\n", count);
    fprintf(c,
            "__asm__(\".section .rodata\\n.balign 64\\n.globl cuda_image_data\\n\"\n"
            "        \".hidden cuda_image_data\\ncuda_image_data:\\n.incbin \\\"%s\\\"\\n\"\n"
            "        \".byte 0\\n.previous\\n\");\n",
            argv[2]);
    if (fclose(c) || fclose(bin)) {
        fprintf(stderr, "build_images: %s cannot be written\n", argv[1]);
        return 1;
    }
    return 0;
}
