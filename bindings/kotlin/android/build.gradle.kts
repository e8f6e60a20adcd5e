// kvik as an Android library: the face of bindings/kotlin, its generated sources, and the shared libraries of Rust,
// which README.md says how to build into src/main/jniLibs.
plugins {
    id("com.android.library") version "8.7.3"
    id("org.jetbrains.kotlin.android") version "2.1.0"
}

android {
    namespace = "dev.kvik"
    compileSdk = 35

    defaultConfig {
        // java.time, which reports of answers use.
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
    }

    sourceSets["main"].kotlin.srcDir("../src/main/kotlin")

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }

    // A model in the assets is mapped where it lies, so it must not be compressed.
    androidResources {
        noCompress += "gguf"
    }
}

kotlin {
    jvmToolchain(17)
}

dependencies {
    implementation("net.java.dev.jna:jna:5.13.0@aar")
    api("org.jetbrains.kotlinx:kotlinx-coroutines-android:1.10.2")
}
