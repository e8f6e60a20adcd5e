plugins {
    id("com.android.application") version "8.7.3"
    id("org.jetbrains.kotlin.android") version "2.1.0"
}

android {
    namespace = "dev.kvik.endless"
    compileSdk = 35

    defaultConfig {
        applicationId = "dev.kvik.endless"
        // Android 9. The module of kvik itself wants 26.
        minSdk = 28
        targetSdk = 35
        versionCode = 1
        versionName = "1"
        // kvik's library for phones, and for the emulator while it is debugged.
        ndk { abiFilters += "arm64-v8a" }
    }

    buildTypes {
        debug {
            ndk { abiFilters += "x86_64" }
        }
        release {
            isMinifyEnabled = true
            isShrinkResources = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
        }
    }

    // The core is the one that runs on the JVM; the model is the one in the repository.
    sourceSets["main"].kotlin.srcDirs("../core", "../../core")
    sourceSets["main"].assets.srcDir("../../../models/tiny")

    // The model is mapped where it lies in the package, so it must not be compressed; what lies beside it stays out.
    androidResources {
        noCompress += "gguf"
        ignoreAssetsPattern = "!*.jsonl:!*.json:!*.txt:!*.md:!train"
    }

    // Libraries are mapped where they lie, too, on pages of 16 KiB where the system has these.
    packaging.jniLibs.useLegacyPackaging = false

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

kotlin {
    jvmToolchain(17)
}

dependencies {
    implementation(project(":kvik"))
}
